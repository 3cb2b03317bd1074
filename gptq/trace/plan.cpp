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
  if (options.high_count < 0)
    throw UsageError(fmt::format("{} matrices of high precision, which may not be negative", options.high_count));
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

// choose(name, tensor) is the precision of a large matrix.
template <typename Choose>
Plan plan_of(const std::map<std::string, TensorSummary>& tensors, int64_t min_elements, const Choose& choose) {
  if (min_elements < 0)
    throw UsageError(fmt::format("matrices above {} elements, which may not be negative", min_elements));
  Plan plan;
  for (const auto& [name, tensor] : tensors)
    plan[name] = is_large_matrix(name, tensor, min_elements) ? choose(name, tensor) : raw_precision(tensor);
  return plan;
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

double trace_sensitivity(const Hessian& hessian) {
  // Damping adds K times kCollectionDamping * mean(diag), that is kCollectionDamping times the trace.
  return (1 + kCollectionDamping) * hessian.matrix.trace() * static_cast<double>(hessian.token_count) /
         static_cast<double>(hessian.sequence_count);
}

std::map<std::string, double> trace_sensitivities(const HessianSet& hessians) {
  std::map<std::string, double> sensitivities;
  for (const auto& [layer, hessian] : hessians) sensitivities[layer] = trace_sensitivity(*hessian);
  return sensitivities;
}

Plan make_trace_plan(const std::map<std::string, TensorSummary>& tensors,
                     const std::map<std::string, double>& sensitivities, const TracePlanOptions& options) {
  check(options);
  std::vector<std::pair<double, std::string>> ranking;
  Plan plan = plan_of(tensors, options.min_elements, [&](const std::string& name, const TensorSummary& tensor) {
    if (auto found = sensitivities.find(name); found != sensitivities.end()) ranking.emplace_back(-found->second, name);
    return coded_precision(tensor, kOtherMatrixBits, RowScaledPrecision::Rounding::kNearest);
  });
  std::ranges::sort(ranking);
  for (size_t i = 0; i < ranking.size(); ++i) {
    int bits = static_cast<int64_t>(i) < options.high_count ? options.high_bits : options.low_bits;
    const std::string& name = ranking[i].second;
    plan[name] = coded_precision(tensors.at(name), bits, RowScaledPrecision::Rounding::kGptq);
  }
  return plan;
}

Plan make_slope_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements) {
  return plan_of(tensors, min_elements, [&](const std::string& name, const TensorSummary& tensor) -> Precision {
    if (!layers.contains(name))
      return coded_precision(tensor, kOtherMatrixBits, RowScaledPrecision::Rounding::kNearest);
    return RowScaledPrecision{max_code_of_bits(kOtherMatrixBits), RowScaledPrecision::Rounding::kGptq};
  });
}

Plan make_nvfp4_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements) {
  using Rounding = Nvfp4Precision::Rounding;
  return plan_of(tensors, min_elements, [&](const std::string& name, const TensorSummary& tensor) -> Precision {
    if (tensor.max_magnitude > kMaxNvfp4Magnitude) return RawPrecision{tensor.dtype};
    return Nvfp4Precision{layers.contains(name) ? Rounding::kGptq : Rounding::kNearest};
  });
}

}  // namespace thimble
