// weights.cpp: see weights.h.
#include "runtime/ops/weights.h"

#include <cassert>
#include <cmath>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

std::vector<float> made_of(const VectorRule& rule, const FloatTensors& small) {
  const std::vector<float>& stored = small.at(rule.parameter);
  const auto first = stored.begin() + rule.first;
  std::vector<float> vector(first, first + rule.count);
  const float times = rule.times.empty() ? 1.0f : small.at(rule.times).at(0);
  for (float& value : vector) {
    if (rule.sigmoid) value = 1.0f / (1.0f + std::exp(-value));
    value = value * times + rule.plus;
  }
  return vector;
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void Weights::set_small(FloatTensors tensors) {
  small = std::move(tensors);
  vectors.clear();
  for (const VectorRule& rule : network->vectors) vectors.push_back(made_of(rule, small));
}

uint64_t Weights::owned_bytes() const {
  uint64_t bytes = 0;
  for (const StoredMatrix& matrix : matrices) bytes += matrix.owned_bytes();
  for (const auto& [name, values] : small) bytes += values.size() * sizeof(float);
  for (const std::vector<float>& values : vectors) bytes += values.size() * sizeof(float);
  return bytes;
}

Weights bind_weights(std::shared_ptr<const Network> network, FloatTensors tensors) {
  std::map<std::string, StoredMatrix> matrices;
  for (const MatrixUse& use : network->matrices) matrices[use.name];
  parallel_for(static_cast<int64_t>(network->matrices.size()), [&](int64_t i) {
    const MatrixUse& use = network->matrices[static_cast<size_t>(i)];
    const std::vector<float> values = std::move(tensors.at(use.name));
    matrices.at(use.name) = Matrix(values, use.rows, use.columns);
  });
  for (const MatrixUse& use : network->matrices) tensors.erase(use.name);
  return bind_weights(std::move(network), std::move(matrices), std::move(tensors));
}

Weights bind_weights(std::shared_ptr<const Network> network, std::map<std::string, StoredMatrix> matrices,
                     FloatTensors others) {
  Weights weights;
  weights.network = std::move(network);
  for (const MatrixUse& use : weights.network->matrices) {
    weights.matrices.push_back(std::move(matrices.at(use.name)));
    assert(weights.matrices.back().rows() == use.rows && weights.matrices.back().cols() == use.columns);
  }
  weights.set_small(std::move(others));
  return weights;
}

NamedGradients stored_gradients(const Network& network, const FloatTensors& small,
                                const std::vector<std::vector<double>>& vectors) {
  NamedGradients named;
  for (const Parameter& parameter : network.parameters)
    if (parameter.role == Role::kSmall)
      named[parameter.name].resize(static_cast<size_t>(element_count(parameter.shape)));
  for (size_t v = 0; v < vectors.size(); ++v) {
    const VectorRule& rule = network.vectors[v];
    if (vectors[v].empty()) continue;
    const std::vector<float>& stored = small.at(rule.parameter);
    const double times = rule.times.empty() ? 1 : static_cast<double>(small.at(rule.times).at(0));
    std::vector<double>& own = named.at(rule.parameter);
    double by_times = 0;
    for (size_t i = 0; i < vectors[v].size(); ++i) {
      const size_t at = static_cast<size_t>(rule.first) + i;
      const auto value = static_cast<double>(stored[at]);
      const double f = rule.sigmoid ? logistic(value) : value, slope = rule.sigmoid ? f * (1 - f) : 1;
      own[at] += vectors[v][i] * slope * times;
      by_times += vectors[v][i] * f;
    }
    if (!rule.times.empty()) named.at(rule.times)[0] += by_times;
  }
  return named;
}

}  // namespace thimble
