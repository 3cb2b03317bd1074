// precision_text.cpp: see precision_text.h.
#include "quantizer/reports/precision_text.h"

#include <fmt/format.h>

#include "runtime/base/count_text.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

std::string trace_text(const TracePlanOptions& plan, int64_t high, int64_t layers) {
  if (layers == 0) return "no layer was solved";
  if (high == 0) return fmt::format("int{} for {}", plan.low_bits, counted(layers, "layer"));
  if (high >= layers) return fmt::format("int{} for {}", plan.high_bits, counted(layers, "layer"));
  return fmt::format("int{} for the {}, int{} for the other {}", plan.high_bits,
                     high == 1 ? "most sensitive layer" : fmt::format("{} most sensitive layers", high), plan.low_bits,
                     layers - high);
}

std::string nvfp4_text(const std::map<std::string, int64_t>& precisions) {
  const auto found = precisions.find("nvfp4");
  std::string text =
      found == precisions.end() ? "NVFP4 for no matrix" : "NVFP4 for " + counted(found->second, "matrix", "matrices");
  for (const auto& [name, count] : precisions)
    if (name != "nvfp4") text += fmt::format(", {} for {}", name, counted(count, "tensor"));
  return text;
}

}  // namespace

std::string precision_text(const QuantizeRequest& request, const QuantizeOutcome& outcome) {
  switch (request.method) {
    case MethodKind::kSlope:
      return fmt::format("{}, log2 of the step {:.4f}", trellis_name(request.slope.trellis_bits), outcome.log2_c);
    case MethodKind::kTrace:
      return trace_text(request.plan, outcome.high_count, static_cast<int64_t>(outcome.layers.size()));
    case MethodKind::kNvfp4: break;
  }
  return nvfp4_text(outcome.precisions);
}

}  // namespace thimble
