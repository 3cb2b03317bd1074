// rate_bound.cpp: see rate_bound.h. Components are never formed one by one: those of a row are multiples of the
// spectrum, so that running sums over the spectrum give a row's loss and bits from one binary search.
#include "gptq/slope/rate_bound.h"

#include <Eigen/Eigenvalues>
#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/error.h"

namespace thimble {
namespace {

// log2 of the lowest water level that is looked for, relative to the largest component: beyond any float32 weight.
constexpr double kLowestLevel = -300;
constexpr int kBisections = 80;  // of an interval of 300: to the last digit of a double

class WaterFilling {
 public:
  explicit WaterFilling(const GaussianSource& source) : rows_(source.rows), columns_(source.columns) {
    const size_t count = columns_.size();
    tail_sums_.resize(count + 1);
    log_sums_.resize(count + 1);
    for (size_t k = count; k-- > 0;) tail_sums_[k] = tail_sums_[k + 1] + columns_[k];
    for (size_t k = 0; k < count; ++k) log_sums_[k + 1] = log_sums_[k] + (columns_[k] > 0 ? std::log2(columns_[k]) : 0);
  }

  double largest() const {
    return rows_.empty() || columns_.empty() ? 0 : std::ranges::max(rows_) * columns_.front() / 2;
  }

  double loss(double level) const {
    double sum = 0;
    for (double row : rows_) {
      const size_t above = count_above(row, level);
      sum += static_cast<double>(above) * level + row / 2 * tail_sums_[above];
    }
    return sum;
  }

  double bits(double level) const {
    double sum = 0;
    for (double row : rows_)
      if (const size_t above = count_above(row, level); above > 0)
        sum += (static_cast<double>(above) * std::log2(row / 2 / level) + log_sums_[above]) / 2;
    return sum;
  }

 private:
  // Components of the row above the level: the first ones.
  size_t count_above(double row, double level) const {
    auto end = std::ranges::partition_point(columns_, [&](double column) { return row / 2 * column > level; });
    return static_cast<size_t>(end - columns_.begin());
  }

  std::span<const double> rows_, columns_;
  std::vector<double> tail_sums_;  // (K + 1) sum of columns k and after
  std::vector<double> log_sums_;   // (K + 1) sum of log2 of columns before k
};

}  // namespace

std::vector<double> hessian_spectrum(const MatrixLoss& loss, const std::string& layer) {
  std::vector<double> spectrum = loss.diagonal;
  if (loss.hessian) {
    const int64_t size = loss.hessian->size();
    Eigen::MatrixXd lower(size, size);  // the solver reads the lower triangle only
    std::vector<double> row(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      loss.hessian->load_row(i, row);
      if (!std::all_of(row.begin(), row.begin() + i + 1, [](double value) { return std::isfinite(value); }))
        throw Error(ExitCode::kBadInput, "layer '" + layer + "': Hessian holds a value that is not finite");
      for (int64_t j = 0; j <= i; ++j) lower(i, j) = row[static_cast<size_t>(j)];
    }
    Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(lower, Eigen::EigenvaluesOnly);
    spectrum.assign(solver.eigenvalues().begin(), solver.eigenvalues().end());
  }
  for (double& value : spectrum) value = std::max(value, 0.0);  // rounding errors of eigenvalues that are 0
  std::ranges::sort(spectrum, std::greater{});
  return spectrum;
}

GaussianSource gaussian_source(const MatrixLoss& loss, ConstMatrixView weights, std::vector<double> spectrum) {
  GaussianSource source{{}, std::move(spectrum)};
  const std::vector<double> mean_squares = row_mean_squares(weights);
  for (size_t r = 0; r < mean_squares.size(); ++r) source.rows.push_back(loss.row_weights[r] * mean_squares[r]);
  return source;
}

double rate_bound_bits(std::span<const GaussianSource> sources, double loss) {
  std::vector<WaterFilling> parts(sources.begin(), sources.end());
  auto sum = [&](auto of_part) {
    double total = 0;
    for (const WaterFilling& part : parts) total += of_part(part);
    return total;
  };
  double largest = 0;
  for (const WaterFilling& part : parts) largest = std::max(largest, part.largest());
  auto loss_at = [&](double level) { return sum([&](const WaterFilling& part) { return part.loss(level); }); };
  if (loss_at(largest) <= loss) return 0;
  if (loss <= 0) return std::numeric_limits<double>::infinity();

  double low = std::log2(largest) + kLowestLevel, high = std::log2(largest);
  for (int i = 0; i < kBisections; ++i) {
    const double middle = (low + high) / 2;
    (loss_at(std::exp2(middle)) < loss ? low : high) = middle;
  }
  return sum([&](const WaterFilling& part) { return part.bits(std::exp2(high)); });
}

}  // namespace thimble
