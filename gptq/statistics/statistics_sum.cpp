// statistics_sum.cpp: sums over the parts of a calibration set.
#include "gptq/statistics/statistics_sum.h"

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr int64_t kAddedRowsPerTask = 64;

[[noreturn]] void refuse(const std::string& name) {
  throw Error(ExitCode::kInternal, "'" + name + "': the parts of a calibration set differ");
}

// sum += tokens * mean.
void add_fishers(const FisherSet& part, bool is_first, FisherSet& sums) {
  if (!is_first && part.size() != sums.size()) refuse("Fisher");
  for (const auto& [name, mean] : part) {
    Fisher& sum = sums[name];
    if (is_first) sum.mean_square.resize(mean.mean_square.size());
    if (sum.mean_square.size() != mean.mean_square.size()) refuse(name);
    auto tokens = static_cast<double>(mean.token_count);
    for (size_t r = 0; r < mean.mean_square.size(); ++r) sum.mean_square[r] += tokens * mean.mean_square[r];
    sum.token_count += mean.token_count;
  }
}

void add_counts(const RowCounts& part, bool is_first, RowCounts& sums) {
  if (!is_first && part.size() != sums.size()) refuse("row counts");
  for (const auto& [name, counts] : part) {
    std::vector<int64_t>& sum = sums[name];
    if (is_first) sum.resize(counts.size());
    if (sum.size() != counts.size()) refuse(name);
    std::ranges::transform(sum, counts, sum.begin(), std::plus{});
  }
}

}  // namespace

size_t hessian_part_count(int64_t sequences) { return static_cast<size_t>(std::min(sequences, kMaxHessianParts)); }

Share hessian_part(int64_t sequences, size_t part) {
  return share_of(static_cast<size_t>(sequences), part, hessian_part_count(sequences));
}

void add_hessian(Hessian& sum, const Hessian& added, double factor) {
  parallel_chunks(sum.matrix.size(), kAddedRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      double* row = sum.matrix.lower_row(i);
      const double* more = added.matrix.lower_row(i);
      for (int64_t j = 0; j <= i; ++j) row[j] += factor * more[j];
    }
  });
  sum.token_count += added.token_count;
  sum.sequence_count += added.sequence_count;
}

void StatisticsSum::add(const HessianSet& part, HessianSums& sums) const {
  std::map<const Hessian*, std::vector<std::string>> inputs;
  for (const auto& [layer, hessian] : part) inputs[hessian.get()].push_back(layer);
  for (const auto& [mean, layers] : inputs) {
    SharedHessian& sum = sums[layers[0]];
    if (is_first_) sum = {layers, {SymmetricMatrix(mean->matrix.size()), 0, 0}};
    if (sum.layers != layers || sum.hessian.matrix.size() != mean->matrix.size()) refuse(layers[0]);
    add_hessian(sum.hessian, *mean, static_cast<double>(mean->token_count));
  }
  if (inputs.size() != sums.size()) refuse("Hessians");
}

void StatisticsSum::add(const CalibrationStatistics& part) {
  add(part.hessians, hessians_);
  add(part.loss.head, head_);
  add_fishers(part.loss.output_fisher, is_first_, loss_.output_fisher);
  add_fishers(part.loss.lookup_fisher, is_first_, loss_.lookup_fisher);
  add_counts(part.loss.row_counts, is_first_, loss_.row_counts);
  is_first_ = false;
}

CalibrationStatistics StatisticsSum::finish() && {
  divide_by_tokens(loss_);
  loss_.head = mean_hessians(std::move(head_));
  return {mean_hessians(std::move(hessians_)), std::move(loss_)};
}

}  // namespace thimble
