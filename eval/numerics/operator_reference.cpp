// operator_reference.cpp: the definitions, row by row, in float64.
#include "eval/numerics/operator_reference.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

using Row = std::vector<double>;

constexpr int64_t kElementsPerTask = 1 << 15;

void softmax(const Row& x, double scale, double* y) {
  double peak = *std::ranges::max_element(x), sum = 0;
  for (double value : x) sum += std::exp(scale * (value - peak));
  for (size_t i = 0; i < x.size(); ++i) y[i] = std::exp(scale * (x[i] - peak)) / sum;
}

double cross_entropy(const Row& x, int32_t target) {
  double peak = *std::ranges::max_element(x), sum = 0;
  for (double value : x) sum += std::exp(value - peak);
  return peak - x[static_cast<size_t>(target)] + std::log(sum);
}

// (x - centre) / sqrt(mean((x - centre)^2) + epsilon) with the gains.
void norm(const Row& x, double centre, const OperatorCall& call, double* y) {
  double squares = 0;
  for (double value : x) squares += (value - centre) * (value - centre);
  double deviation = std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(call.epsilon));
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - centre) / deviation;
    if (call.weight) y[i] *= static_cast<double>(call.weight[i]);
    if (call.bias) y[i] += static_cast<double>(call.bias[i]);
  }
}

double mean(const Row& x) {
  double sum = 0;
  for (double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

// x (1 + tanh u) / 2 with 1 + tanh u = 2 e^2u / (1 + e^2u), which does not cancel for u < 0.
double gelu(double x) {
  double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  if (u >= 0) return 0.5 * x * (1 + std::tanh(u));
  double e = std::exp(2 * u);
  return x * e / (1 + e);
}

Row read_row(const OperatorCall& call, int64_t r) {
  size_t bytes = static_cast<size_t>(call.cols) * dtype_bytes(call.in);
  Bytes stored(static_cast<const std::byte*>(call.x) + static_cast<size_t>(r) * bytes, bytes);
  std::vector<float> exact = to_float32(call.in, stored);
  return {exact.begin(), exact.end()};
}

void reference_row(const OperatorCall& call, int64_t r, std::span<double> y) {
  Row x = read_row(call, r);
  double* to = y.data() + (call.op == Operator::kCrossEntropy ? r : r * call.cols);
  switch (call.op) {
    case Operator::kSoftmax: return softmax(x, 1, to);
    case Operator::kDequantizeSoftmax: return softmax(x, static_cast<double>(call.scale[r]), to);
    case Operator::kRmsNorm: return norm(x, 0, call, to);
    case Operator::kLayerNorm: return norm(x, mean(x), call, to);
    case Operator::kCrossEntropy: *to = cross_entropy(x, call.targets[r]); return;
    case Operator::kGelu: std::ranges::transform(x, to, gelu); return;
    case Operator::kSoftcap:
      std::ranges::transform(x, to,
                             [cap = static_cast<double>(call.cap)](double v) { return cap * std::tanh(v / cap); });
      return;
  }
}

}  // namespace

int64_t operator_output_count(const OperatorCall& call) {
  return call.op == Operator::kCrossEntropy ? call.rows : call.rows * call.cols;
}

void operator_reference(const OperatorCall& call, std::span<double> y) {
  assert(static_cast<int64_t>(y.size()) == operator_output_count(call));
  parallel_chunks(call.rows, std::max<int64_t>(1, kElementsPerTask / call.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) reference_row(call, r, y);
  });
}

}  // namespace thimble
