// prune.cpp: all codes of a row share its scale, so it is the rows that are sorted, not the codes.
#include "gptq/trace/prune.h"

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/tensor/dtype.h"

namespace thimble {
namespace {

bool is_solved_by_gptq(const Plan& plan, const std::string& name) {
  auto found = plan.find(name);
  if (found == plan.end()) return false;
  const auto* coded = std::get_if<RowScaledPrecision>(&found->second);
  return coded && coded->rounding == RowScaledPrecision::Rounding::kGptq;
}

bool is_prunable(int8_t code) { return code == 1 || code == -1; }

struct Row {
  float scale;  // > 0: scales sort like their squares
  std::span<int8_t> codes;
};

// The rows of all GPTQ tensors in the order of the model's tensors (by name), then of position.
std::vector<Row> prunable_rows(QuantizedModel& model, const Plan& plan) {
  std::vector<Row> rows;
  for (QuantizedTensor& tensor : model.tensors) {
    auto* coded = std::get_if<RowScaledCodes>(&tensor.data);
    if (!coded || coded->codes.empty() || !is_solved_by_gptq(plan, tensor.name)) continue;
    size_t columns = coded->codes.size() / coded->row_scales.size();
    for (size_t r = 0; r < coded->row_scales.size(); ++r)
      rows.push_back({float_from_fp16(coded->row_scales[r]), std::span(coded->codes).subspan(r * columns, columns)});
  }
  return rows;
}

}  // namespace

int64_t count_prunable(const QuantizedModel& model, const Plan& plan) {
  int64_t count = 0;
  for (const QuantizedTensor& tensor : model.tensors) {
    const auto* coded = std::get_if<RowScaledCodes>(&tensor.data);
    if (coded && is_solved_by_gptq(plan, tensor.name)) count += std::ranges::count_if(coded->codes, is_prunable);
  }
  return count;
}

int64_t prune_smallest(QuantizedModel& model, const Plan& plan, int64_t count) {
  std::vector<Row> rows = prunable_rows(model, plan);
  std::ranges::stable_sort(rows, {}, &Row::scale);
  int64_t pruned = 0;
  for (const Row& row : rows)
    for (int8_t& code : row.codes) {
      if (pruned >= count) return pruned;
      if (!is_prunable(code)) continue;
      code = 0;
      ++pruned;
    }
  return pruned;
}

}  // namespace thimble
