// moe_layer.cpp: see moe_layer.h.
#include "runtime/operators/moe_layer.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "runtime/base/random.h"

namespace thimble {
namespace {

// Routing weights of one token: softmax over the top k logits; of equal ones the lower expert is chosen.
void route_token(const MoeLayer& layer, const float* x, float* routing) {
  std::vector<float> logits(static_cast<size_t>(layer.experts));
  for (int64_t e = 0; e < layer.experts; ++e) {
    float sum = 0;
    for (int64_t d = 0; d < layer.model_dim; ++d) sum += x[d] * layer.router(e, d);
    logits[static_cast<size_t>(e)] = sum;
  }
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t e) { return logits[e]; });
  order.resize(static_cast<size_t>(layer.top_k));
  float total = 0;
  for (size_t e : order) total += routing[e] = std::exp(logits[e] - logits[order[0]]);
  for (size_t e : order) routing[e] /= total;
}

std::vector<MoeRoute> routes_of(const Matrix& routing) {
  std::vector<MoeRoute> routes;
  for (int64_t e = 0; e < routing.cols(); ++e)
    for (int64_t t = 0; t < routing.rows(); ++t)
      if (routing(t, e) != 0) routes.push_back({e, t});
  return routes;
}

// Some rows of a matrix in NVFP4, with its tensor scale.
Nvfp4Codes gather_rows(const Nvfp4Codes& coded, int64_t columns, std::span<const int64_t> rows) {
  Nvfp4Codes gathered = nvfp4_zeros(static_cast<int64_t>(rows.size()), columns);
  gathered.tensor_scale = coded.tensor_scale;
  const int64_t row_bytes = nvfp4_row_bytes(columns), blocks = nvfp4_blocks(columns);
  for (size_t i = 0; i < rows.size(); ++i) {
    std::copy_n(coded.codes.begin() + rows[i] * row_bytes, row_bytes,
                gathered.codes.begin() + static_cast<int64_t>(i) * row_bytes);
    std::copy_n(coded.block_scales.begin() + rows[i] * blocks, blocks,
                gathered.block_scales.begin() + static_cast<int64_t>(i) * blocks);
  }
  return gathered;
}

// Products per expert: row i of the result is row source(i) of `a` times the weights of its expert.
template <typename Source>
Matrix multiply_per_expert(const std::vector<MoeRoute>& routes, const Nvfp4Codes& a, Source source,
                           const std::vector<Nvfp4Codes>& weights, int64_t n, int64_t k,
                           const MultiplyNvfp4& multiply) {
  Matrix result(static_cast<int64_t>(routes.size()), n);
  for (size_t first = 0, last = 0; first < routes.size(); first = last) {
    std::vector<int64_t> rows;
    for (; last < routes.size() && routes[last].expert == routes[first].expert; ++last) rows.push_back(source(last));
    const auto count = static_cast<int64_t>(rows.size());
    const Matrix part =
        multiply(gather_rows(a, k, rows), count, weights[static_cast<size_t>(routes[first].expert)], n, k);
    std::copy_n(part.data(), count * n, result.row(static_cast<int64_t>(first)));
  }
  return result;
}

Matrix activate(const Matrix& l1, int64_t hidden_dim) {
  Matrix activated(l1.rows(), hidden_dim);
  for (int64_t r = 0; r < l1.rows(); ++r)
    for (int64_t f = 0; f < hidden_dim; ++f) {
      const float gate = l1(r, f);
      activated(r, f) = gate / (1 + std::exp(-gate)) * l1(r, hidden_dim + f);
    }
  return activated;
}

Matrix scatter(const MoeTrace& trace, int64_t tokens, int64_t model_dim) {
  Matrix output(tokens, model_dim);
  for (size_t i = 0; i < trace.routes.size(); ++i) {
    const auto [expert, token] = trace.routes[i];
    const float* row = trace.l2.row(static_cast<int64_t>(i));
    for (int64_t d = 0; d < model_dim; ++d) output(token, d) += trace.routing(token, expert) * row[d];
  }
  return output;
}

// The faults. One element about the middle of each stage.
void spoil(Matrix& values) {
  float most = 0;
  for (float value : values.values()) most = std::max(most, std::abs(value));
  size_t at = values.values().size() / 2;
  while (values.values()[at] == 0) at = (at + 1) % values.values().size();  // routing weights are mostly 0
  values.values()[at] += 0.01f * most;
}
void spoil_scale(Nvfp4Codes& coded) {
  uint8_t& scale = coded.block_scales[coded.block_scales.size() / 2];
  scale = static_cast<uint8_t>(scale < 64 ? scale + 3 : scale - 3);
}
void spoil_code(Nvfp4Codes& coded) {
  uint8_t& byte = coded.codes[coded.codes.size() / 2];
  const int magnitude = byte & kE2m1MaxCode;
  byte = static_cast<uint8_t>((byte & ~kE2m1MaxCode) | (magnitude < 4 ? magnitude + 3 : magnitude - 3));
}

}  // namespace

MoeTrace run_moe(const MoeLayer& layer, ConstMatrixView x, const MultiplyNvfp4& multiply,
                 std::optional<MoeStage> fault) {
  MoeTrace trace;
  trace.routing.resize(x.rows, layer.experts);
  for (int64_t t = 0; t < x.rows; ++t) route_token(layer, x.row(t), trace.routing.row(t));
  if (fault == MoeStage::kRouter) spoil(trace.routing);
  trace.routes = routes_of(trace.routing);
  trace.x = stage_nvfp4(x);
  if (fault == MoeStage::kXScales) spoil_scale(trace.x);
  if (fault == MoeStage::kXCodes) spoil_code(trace.x);
  trace.l1 = multiply_per_expert(
      trace.routes, trace.x, [&](size_t i) { return trace.routes[i].token; }, layer.up, 2 * layer.hidden_dim,
      layer.model_dim, multiply);
  if (fault == MoeStage::kL1) spoil(trace.l1);
  trace.activated = activate(trace.l1, layer.hidden_dim);
  if (fault == MoeStage::kActivation) spoil(trace.activated);
  trace.hidden = stage_nvfp4(trace.activated);
  if (fault == MoeStage::kHScales) spoil_scale(trace.hidden);
  if (fault == MoeStage::kHCodes) spoil_code(trace.hidden);
  trace.l2 = multiply_per_expert(
      trace.routes, trace.hidden, [](size_t i) { return static_cast<int64_t>(i); }, layer.down, layer.model_dim,
      layer.hidden_dim, multiply);
  if (fault == MoeStage::kL2) spoil(trace.l2);
  trace.output = scatter(trace, x.rows, layer.model_dim);
  if (fault == MoeStage::kScatter) spoil(trace.output);
  return trace;
}

Matrix random_normal_matrix(int64_t rows, int64_t cols, double deviation, uint64_t seed) {
  Matrix matrix(rows, cols);
  for (size_t i = 0; i < matrix.values().size(); ++i) {  // Box-Muller
    const double radius = std::sqrt(-2 * std::log(1 - uniform_at(seed, 0, i)));
    const double angle = 2 * std::numbers::pi * uniform_at(seed, 1, i);
    matrix.values()[i] = static_cast<float>(deviation * radius * std::cos(angle));
  }
  return matrix;
}

MoeLayer random_moe_layer(int64_t model_dim, int64_t hidden_dim, int64_t experts, int64_t top_k, uint64_t seed) {
  const double up = 1 / std::sqrt(static_cast<double>(model_dim)),
               down = 1 / std::sqrt(static_cast<double>(hidden_dim));
  MoeLayer layer{model_dim, hidden_dim, experts, top_k, random_normal_matrix(experts, model_dim, up, ++seed), {}, {}};
  for (int64_t e = 0; e < experts; ++e) {
    layer.up.push_back(stage_nvfp4(random_normal_matrix(2 * hidden_dim, model_dim, up, ++seed)));
    layer.down.push_back(stage_nvfp4(random_normal_matrix(model_dim, hidden_dim, down, ++seed)));
  }
  return layer;
}

}  // namespace thimble
