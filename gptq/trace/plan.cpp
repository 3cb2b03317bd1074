// plan.cpp: see plan.h.
#include "gptq/trace/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "gptq/trace/grid.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr double kFp16Max = 65504;
constexpr int kOtherMatrixBits = 8;
// With it the tensor scale is at most kMaxNvfp4TensorScale, and every value finite.
constexpr double kMaxNvfp4Magnitude = 0x1p127;

void check(const TracePlanOptions& options) {
  if (options.low_bits < 2 || options.high_bits > 8 || options.low_bits > options.high_bits)
    throw UsageError(fmt::format("bits {} (low) and {} (high), allowed are 2 <= low <= high <= 8", options.low_bits,
                                 options.high_bits));
  if (options.high_count < 0 || options.min_elements < 0)
    throw UsageError(fmt::format("{} matrices of high precision above {} elements, neither may be negative",
                                 options.high_count, options.min_elements));
}

Precision raw_precision(const TensorSummary& tensor) {
  return RawPrecision{is_floating(tensor.dtype) && tensor.max_magnitude <= kFp16Max ? DType::kF16 : tensor.dtype};
}

Precision coded_precision(const TensorSummary& tensor, int bits, RowScaledPrecision::Rounding rounding) {
  int max_code = max_code_of_bits(bits);
  if (tensor.max_magnitude > kFp16Max * max_code) return RawPrecision{tensor.dtype};
  return RowScaledPrecision{max_code, rounding};
}

// A finite one that is to be quantized.
bool is_large_matrix(const std::string& name, const TensorSummary& tensor, int64_t min_elements) {
  if (tensor.shape.size() != 2 || !is_floating(tensor.dtype) || element_count(tensor.shape) <= min_elements)
    return false;
  if (!std::isfinite(tensor.max_magnitude))
    throw Error(ExitCode::kBadInput, fmt::format("tensor '{}' holds a weight that is not finite", name));
  return true;
}

}  // namespace

bool needs_hessian(const Precision& precision) {
  if (const auto* coded = std::get_if<RowScaledPrecision>(&precision))
    return coded->rounding == RowScaledPrecision::Rounding::kGptq;
  if (const auto* blocked = std::get_if<Nvfp4Precision>(&precision))
    return blocked->rounding == Nvfp4Precision::Rounding::kGptq;
  return false;
}

std::string precision_text(const Precision& precision) {
  const char* rounding = needs_hessian(precision) ? "gptq" : "nearest";
  if (std::holds_alternative<Nvfp4Precision>(precision)) return fmt::format("nvfp4 {}", rounding);
  if (const auto* raw = std::get_if<RawPrecision>(&precision)) return std::string(dtype_name(raw->dtype));
  const auto& coded = std::get<RowScaledPrecision>(precision);
  return fmt::format("int{} {}", code_bits(coded.max_code), rounding);
}

TensorSummary summarize_tensor(const TensorView& tensor) {
  TensorSummary summary{tensor.dtype, tensor.shape, 0};
  if (!is_floating(tensor.dtype)) return summary;
  for (float value : to_float32(tensor))
    summary.max_magnitude = std::isfinite(value) ? std::max(summary.max_magnitude, std::abs(double{value}))
                                                 : std::numeric_limits<double>::infinity();
  return summary;
}

Plan make_trace_plan(const std::map<std::string, TensorSummary>& tensors,
                     const std::map<std::string, double>& sensitivities, const TracePlanOptions& options) {
  check(options);
  using Rounding = RowScaledPrecision::Rounding;
  Plan plan;
  std::vector<std::pair<double, std::string>> ranking;
  for (const auto& [name, tensor] : tensors) {
    const bool large_matrix = is_large_matrix(name, tensor, options.min_elements);
    auto sensitivity = sensitivities.find(name);
    if (!large_matrix)
      plan[name] = raw_precision(tensor);
    else if (sensitivity == sensitivities.end())
      plan[name] = coded_precision(tensor, kOtherMatrixBits, Rounding::kNearest);
    else
      ranking.emplace_back(-sensitivity->second, name);
  }
  std::ranges::sort(ranking);
  for (size_t i = 0; i < ranking.size(); ++i) {
    int bits = static_cast<int64_t>(i) < options.high_count ? options.high_bits : options.low_bits;
    const std::string& name = ranking[i].second;
    plan[name] = coded_precision(tensors.at(name), bits, Rounding::kGptq);
  }
  return plan;
}

Plan make_slope_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements) {
  TracePlanOptions options;
  options.min_elements = min_elements;
  Plan plan = make_trace_plan(tensors, {}, options);
  for (const std::string& name : layers)
    if (auto found = tensors.find(name); found != tensors.end() && is_large_matrix(name, found->second, min_elements))
      plan[name] = RowScaledPrecision{max_code_of_bits(kOtherMatrixBits), RowScaledPrecision::Rounding::kGptq};
  return plan;
}

Plan make_nvfp4_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements) {
  TracePlanOptions options;
  options.min_elements = min_elements;
  check(options);
  Plan plan;
  for (const auto& [name, tensor] : tensors) {
    if (!is_large_matrix(name, tensor, min_elements))
      plan[name] = raw_precision(tensor);
    else if (tensor.max_magnitude > kMaxNvfp4Magnitude)
      plan[name] = RawPrecision{tensor.dtype};
    else
      plan[name] =
          Nvfp4Precision{layers.contains(name) ? Nvfp4Precision::Rounding::kGptq : Nvfp4Precision::Rounding::kNearest};
  }
  return plan;
}

}  // namespace thimble
