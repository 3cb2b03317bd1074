// hessian.cpp: the readable reference of Hessian accumulation.
#include "gptq/statistics/hessian.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

// Tokens whose products are summed in float32 before they reach the float64 sum.
constexpr int64_t kTokensPerFlush = 2048;
constexpr int64_t kRowsPerTask = 64;

}  // namespace

HessianAccumulator::HessianAccumulator(std::string layer, int64_t columns, int64_t first_sequence)
    : layer_(std::move(layer)), first_sequence_(first_sequence), sum_(columns) {}

void HessianAccumulator::add(ConstMatrixView x) {
  if (x.cols != columns())
    throw Error(ExitCode::kInternal,
                fmt::format("layer '{}': input of {} columns, expected {}", layer_, x.cols, columns()));
  // Lives for this call only, so that a model's accumulators together hold one scratch, not one each.
  Matrix products(columns(), columns());
  for (int64_t first = 0; first < x.rows; first += kTokensPerFlush) {
    ConstMatrixView tokens = x.block_rows(first, std::min(kTokensPerFlush, x.rows - first));
    if (first > 0) std::ranges::fill(products.values(), 0.0F);
    accumulate_gram_lower(tokens, products);
    require_finite(products, tokens, first);
    parallel_chunks(columns(), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double* sum = sum_.lower_row(i);
        const float* added = products.row(i);
        for (int64_t j = 0; j <= i; ++j) sum[j] += added[j];
      }
    });
  }
  token_count_ += x.rows;
  ++sequence_count_;
}

// A sum of squares is finite only if every value is, and it bounds the column's other products (Cauchy-Schwarz):
// looking at the diagonal is enough.
void HessianAccumulator::require_finite(const Matrix& products, ConstMatrixView x, int64_t first_position) const {
  int64_t sequence = first_sequence_ + sequence_count_;
  for (int64_t column = 0; column < columns(); ++column) {
    if (std::isfinite(products(column, column))) continue;
    for (int64_t t = 0; t < x.rows; ++t)
      if (!std::isfinite(x.row(t)[column]))
        throw Error(ExitCode::kBadInput,
                    fmt::format("layer '{}': input is {} at sequence {}, position {}, column {}; must be finite",
                                layer_, x.row(t)[column], sequence, first_position + t, column));
    throw Error(ExitCode::kBadInput,
                fmt::format("layer '{}': input column {} of sequence {}, positions {} to {}: the sum of squares "
                            "overflows float32",
                            layer_, column, sequence, first_position, first_position + x.rows - 1));
  }
}

Hessian HessianAccumulator::finish() && {
  if (token_count_ == 0)
    throw Error(ExitCode::kBadInput, fmt::format("layer '{}': no calibration tokens reached it", layer_));
  auto tokens = static_cast<double>(token_count_);
  for (double& value : sum_.values()) value /= tokens;
  return {std::move(sum_), token_count_, sequence_count_};
}

void HessianCollector::on_linear_input(std::span<const std::string> layers, ConstMatrixView x) {
  assert(!layers.empty());
  auto found = inputs_.find(layers[0]);
  if (found == inputs_.end()) {
    Input input{{layers.begin(), layers.end()}, HessianAccumulator(layers[0], x.cols, first_sequence_)};
    found = inputs_.emplace(layers[0], std::move(input)).first;
  }
  if (!std::ranges::equal(found->second.layers, layers))
    throw Error(ExitCode::kInternal, fmt::format("layer '{}': the layers that share its input changed", layers[0]));
  found->second.accumulator.add(x);
}

HessianSet HessianCollector::finish() && {
  std::vector<SharedHessian> hessians;
  for (auto& [first_layer, input] : inputs_)
    hessians.push_back({std::move(input.layers), std::move(input.accumulator).finish()});
  inputs_.clear();
  return share_hessians(std::move(hessians));
}

HessianSet share_hessians(std::vector<SharedHessian> inputs) {
  HessianSet hessians;
  int64_t sequence_count = -1;
  for (SharedHessian& input : inputs) {
    auto hessian = std::make_shared<const Hessian>(std::move(input.hessian));
    if (sequence_count < 0) sequence_count = hessian->sequence_count;
    if (hessian->sequence_count != sequence_count)
      throw Error(ExitCode::kInternal, fmt::format("layer '{}' saw {} sequences, others {}", input.layers[0],
                                                   hessian->sequence_count, sequence_count));
    for (const std::string& layer : input.layers)
      if (!hessians.emplace(layer, hessian).second)
        throw Error(ExitCode::kInternal, fmt::format("layer '{}' was given two inputs", layer));
  }
  return hessians;
}

HessianSet mean_hessians(std::vector<SharedHessian> sums) {
  parallel_for(static_cast<int64_t>(sums.size()), [&](int64_t i) {
    Hessian& hessian = sums[static_cast<size_t>(i)].hessian;
    auto tokens = static_cast<double>(hessian.token_count);
    for (double& value : hessian.matrix.values()) value /= tokens;
  });
  return share_hessians(std::move(sums));
}

}  // namespace thimble
