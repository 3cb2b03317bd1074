// prune.cpp: all codes of a row share its scale, so it is the rows that are sorted, not the codes.
#include "gptq/trace/prune.h"

#include <algorithm>
#include <span>
#include <vector>

#include "runtime/tensor/dtype.h"

namespace thimble {
namespace {

// The codes of a tensor that `plan` solves by GPTQ, or null.
template <typename Tensor>
auto* codes_solved(Tensor& tensor, const Plan& plan) {
  auto* coded = std::get_if<RowScaledCodes>(&tensor.data);
  auto found = plan.find(tensor.name);
  return found != plan.end() && needs_hessian(found->second) ? coded : nullptr;
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
    auto* coded = codes_solved(tensor, plan);
    if (!coded || coded->codes.empty()) continue;
    size_t columns = coded->codes.size() / coded->row_scales.size();
    for (size_t r = 0; r < coded->row_scales.size(); ++r)
      rows.push_back({float_from_fp16(coded->row_scales[r]), std::span(coded->codes).subspan(r * columns, columns)});
  }
  return rows;
}

}  // namespace

int64_t count_prunable(const QuantizedModel& model, const Plan& plan) {
  int64_t count = 0;
  for (const QuantizedTensor& tensor : model.tensors)
    if (const auto* coded = codes_solved(tensor, plan)) count += std::ranges::count_if(coded->codes, is_prunable);
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
