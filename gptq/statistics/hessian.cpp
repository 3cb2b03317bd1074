// hessian.cpp: the readable reference of Hessian accumulation.
#include "gptq/statistics/hessian.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

// Tokens whose products are summed in float32 before they reach the float64 sum.
constexpr int64_t kTokensPerFlush = 2048;
constexpr int64_t kHessianRowsPerTask = 64;

// Throws why products with a column of x are not finite.
[[noreturn]] void refuse_column(ConstMatrixView x, int64_t column, const std::string& layer, int64_t sequence,
                                int64_t first_position, const char* what) {
  for (int64_t t = 0; t < x.rows; ++t)
    if (!std::isfinite(x.row(t)[column]))
      throw Error(ExitCode::kBadInput,
                  fmt::format("layer '{}': input is {} at sequence {}, position {}, column {}; must be finite", layer,
                              x.row(t)[column], sequence, first_position + t, column));
  throw Error(ExitCode::kBadInput,
              fmt::format("layer '{}': input column {} of sequence {}, positions {} to {}: the sum of {} overflows "
                          "float32",
                          layer, column, sequence, first_position, first_position + x.rows - 1, what));
}

// add(first token, tokens) for pieces of a sequence.
template <typename Add>
void for_each_flush(int64_t tokens, const Add& add) {
  for (int64_t first = 0; first < tokens; first += kTokensPerFlush)
    add(first, std::min(kTokensPerFlush, tokens - first));
}

void add_row(const float* added, int64_t count, double* row) {
  for (int64_t j = 0; j < count; ++j) row[j] += added[j];
}

}  // namespace

// A sum of squares is finite only if every value is, and it bounds the column's other products (Cauchy-Schwarz):
// looking at the diagonal is enough.
void add_gram(ConstMatrixView x, const std::string& layer, int64_t sequence, SymmetricMatrix& sum,
              ProductArithmetic arithmetic) {
  const int64_t columns = sum.size();
  // Lives for this call only, so that a model's sums together hold one scratch, not one each.
  Matrix products(columns, columns);
  for_each_flush(x.rows, [&](int64_t first, int64_t count) {
    const ConstMatrixView tokens = x.block_rows(first, count);
    if (first > 0) std::ranges::fill(products.values(), 0.0F);
    accumulate_gram_lower(tokens, products, arithmetic);
    for (int64_t column = 0; column < columns; ++column)
      if (!std::isfinite(products(column, column))) refuse_column(tokens, column, layer, sequence, first, "squares");
    parallel_chunks(columns, kHessianRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) add_row(products.row(i), i + 1, sum.lower_row(i));
    });
  });
}

void add_cross_products(ConstMatrixView x, ConstMatrixView y, const std::string& layer, int64_t sequence,
                        MatrixF64& sum, ProductArithmetic arithmetic) {
  Matrix products(x.cols, y.cols);
  for_each_flush(x.rows, [&](int64_t first, int64_t count) {
    const ConstMatrixView tokens = x.block_rows(first, count);
    if (first > 0) std::ranges::fill(products.values(), 0.0F);
    accumulate_cross(tokens, y.block_rows(first, count), products, arithmetic);
    for (int64_t i = 0; i < x.cols; ++i)
      if (!std::ranges::all_of(std::span(products.row(i), static_cast<size_t>(y.cols)),
                               [](float value) { return std::isfinite(value); }))
        refuse_column(tokens, i, layer, sequence, first, "products");
    parallel_chunks(x.cols, kHessianRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) add_row(products.row(i), y.cols, sum.row(i));
    });
  });
}

void HessianCollector::on_linear_input(std::span<const std::string> layers, ConstMatrixView x) {
  assert(!layers.empty());
  const std::string& layer = layers[0];
  auto [found, is_new] = sums_.try_emplace(layer);
  auto& [known_layers, sum] = found->second;
  if (is_new) found->second = {{layers.begin(), layers.end()}, {SymmetricMatrix(x.cols)}};
  if (!std::ranges::equal(known_layers, layers))
    throw Error(ExitCode::kInternal, fmt::format("layer '{}': the layers that share its input changed", layer));
  const int64_t columns = sum.matrix.size();
  if (x.cols != columns)
    throw Error(ExitCode::kInternal,
                fmt::format("layer '{}': input of {} columns, expected {}", layer, x.cols, columns));
  add_gram(x, layer, first_sequence_ + sum.sequence_count, sum.matrix, arithmetic_);
  sum.token_count += x.rows;
  ++sum.sequence_count;
}

HessianSet mean_hessians(std::vector<SharedHessian> sums) {
  parallel_for(std::ssize(sums), [&](int64_t i) {
    Hessian& hessian = sums[static_cast<size_t>(i)].hessian;
    auto tokens = static_cast<double>(hessian.token_count);
    for (double& value : hessian.matrix.values()) value /= tokens;
  });
  HessianSet hessians;
  for (SharedHessian& sum : sums) {
    if (sum.hessian.token_count == 0)
      throw Error(ExitCode::kBadInput, fmt::format("layer '{}': no calibration tokens reached it", sum.layers[0]));
    const int64_t sequences = sum.hessian.sequence_count, expected = sums[0].hessian.sequence_count;
    if (sequences != expected)
      throw Error(ExitCode::kInternal,
                  fmt::format("layer '{}' saw {} sequences, others {}", sum.layers[0], sequences, expected));
    auto hessian = std::make_shared<const Hessian>(std::move(sum.hessian));
    for (const std::string& layer : sum.layers)
      if (!hessians.emplace(layer, hessian).second)
        throw Error(ExitCode::kInternal, fmt::format("layer '{}' was given two inputs", layer));
  }
  return hessians;
}

HessianSet mean_hessians(HessianSums sums) {
  std::vector<SharedHessian> inputs;
  for (auto& [first_layer, sum] : sums) inputs.push_back(std::move(sum));
  return mean_hessians(std::move(inputs));
}

}  // namespace thimble
