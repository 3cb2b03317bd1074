// statistics_sum.cpp: sums over the parts of a calibration set.
#include "gptq/statistics/statistics_sum.h"

#include <utility>

#include "runtime/base/error.h"

namespace thimble {
namespace {

[[noreturn]] void refuse(const std::string& name) {
  throw Error(ExitCode::kInternal, "'" + name + "': the parts of the loss statistics differ");
}

// sum += tokens * mean.
void add_tokens(const FisherSet& part, bool is_first, FisherSet& sums) {
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
    for (size_t row = 0; row < counts.size(); ++row) sum[row] += counts[row];
  }
}

}  // namespace

void StatisticsSum::add(const CalibrationStatistics& part) {
  hessians_.add(part.hessians);
  if (!part.loss.head.empty()) head_.add(part.loss.head);
  add_tokens(part.loss.output_fisher, is_first_, sums_.output_fisher);
  add_tokens(part.loss.lookup_fisher, is_first_, sums_.lookup_fisher);
  add_counts(part.loss.row_counts, is_first_, sums_.row_counts);
  is_first_ = false;
}

CalibrationStatistics StatisticsSum::finish() && {
  for (FisherSet* set : {&sums_.output_fisher, &sums_.lookup_fisher})
    for (auto& [name, fisher] : *set)
      for (double& value : fisher.mean_square) value /= static_cast<double>(fisher.token_count);
  sums_.head = std::move(head_).finish();
  return {std::move(hessians_).finish(), std::move(sums_)};
}

}  // namespace thimble
