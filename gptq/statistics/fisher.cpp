// fisher.cpp: the readable reference of Fisher accumulation.
#include "gptq/statistics/fisher.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/cpu/gradient_ops.h"

namespace thimble {

double Fisher::mean() const {
  return std::accumulate(mean_square.begin(), mean_square.end(), 0.0) / static_cast<double>(mean_square.size());
}

FisherCollector::FisherCollector(const Network& network, int64_t first_sequence)
    : network_(network), sequence_(first_sequence) {}

void FisherCollector::add_squares(const std::string& name, int64_t first_row, ConstMatrixView gradient,
                                  Fisher& sum) const {
  std::vector<double> squares = column_dots(gradient, gradient);
  sum.mean_square.resize(squares.size());
  for (size_t r = 0; r < squares.size(); ++r) {
    sum.mean_square[r] += squares[r];
    if (std::isfinite(squares[r])) continue;
    auto column = static_cast<int64_t>(r);
    int64_t p = 0;  // squares of finite float32 values do not overflow float64: one of them is not finite
    while (p + 1 < gradient.rows && std::isfinite(gradient.row(p)[column])) ++p;
    throw Error(ExitCode::kBadInput,
                fmt::format("layer '{}': the gradient is {} at sequence {}, position {}, output {}; must be finite",
                            name, gradient.row(p)[column], sequence_, first_row + p, column));
  }
  sum.token_count += gradient.rows;
}

void FisherCollector::on_output_gradient(const std::string& weight, int64_t first_row, ConstMatrixView gradient,
                                         ConstMatrixView) {
  add_squares(weight, first_row, gradient, sums_.output_fisher[weight]);
}

void FisherCollector::on_lookup_gradient(const std::string& table, std::span<const int32_t> rows,
                                         ConstMatrixView gradient) {
  add_squares(table, 0, gradient, sums_.lookup_fisher[table]);
  std::vector<int64_t>& counts = sums_.row_counts[table];
  counts.resize(static_cast<size_t>(network_.matrix(network_.id_of(table)).rows));
  for (int32_t row : rows) ++counts[static_cast<size_t>(row)];
}

void divide_by_tokens(LossStatistics& sums) {
  for (FisherSet* set : {&sums.output_fisher, &sums.lookup_fisher})
    for (auto& [name, fisher] : *set)
      for (double& value : fisher.mean_square) value /= static_cast<double>(fisher.token_count);
}

LossStatistics FisherCollector::finish() && {
  if (sums_.output_fisher.empty()) throw Error(ExitCode::kBadInput, "no calibration tokens reached the loss");
  divide_by_tokens(sums_);
  return std::move(sums_);
}

}  // namespace thimble
