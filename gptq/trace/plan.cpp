// plan.cpp: see plan.h.
#include "gptq/trace/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "gptq/trace/grid.h"
#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/tensor/dtype.h"
#include "runtime/tensor/host_device.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {
namespace {

constexpr double kFp16Max = 65504;
constexpr int kOtherMatrixBits = 8;
constexpr int64_t kSummarizedAtOnce = int64_t{1} << 18;  // elements
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
  return Precision::raw(is_floating(tensor.dtype) && tensor.max_magnitude <= kFp16Max ? DType::kF16 : tensor.dtype);
}

Precision coded_precision(const TensorSummary& tensor, int bits, RoundingMethod rounding) {
  int max_code = max_code_of_bits(bits);
  if (tensor.max_magnitude > kFp16Max * max_code) return Precision::raw(tensor.dtype);
  return Precision::row_scaled(max_code, rounding);
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

RawTensor raw_tensor(const TensorView& tensor, DType dtype) {
  if (dtype == tensor.dtype) return {dtype, ByteVector(tensor.bytes.begin(), tensor.bytes.end())};
  return {dtype, from_float32(dtype, to_float32(tensor))};
}

// The codes of a tensor that `plan` solves by GPTQ, or null.
template <typename Tensor>
auto* codes_solved(Tensor& tensor, const Plan& plan) {
  auto* coded = std::get_if<RowScaledCodes>(&tensor.data);
  auto found = plan.find(tensor.name);
  return found != plan.end() && found->second.needs_hessian() ? coded : nullptr;
}

bool is_prunable(int8_t code) { return code == 1 || code == -1; }

struct Row {
  float scale;  // > 0: scales sort like their squares
  std::span<int8_t> codes;
};

// All codes of a row share its scale, so it is the rows that are sorted, not the codes.
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

std::string precision_text(const Precision& precision) {
  const char* rounding = precision.needs_hessian() ? "gptq" : "nearest";
  switch (precision.grid) {
    case Precision::Grid::kRowScaled: return fmt::format("int{} {}", code_bits(precision.max_code), rounding);
    case Precision::Grid::kNvfp4: return fmt::format("nvfp4 {}", rounding);
    case Precision::Grid::kRaw: break;
  }
  return std::string(dtype_name(precision.dtype));
}

TensorSummary summarize_tensor(const TensorView& tensor) {
  TensorSummary summary{tensor.dtype, tensor.shape, 0};
  if (!is_floating(tensor.dtype)) return summary;
  const size_t width = dtype_bytes(tensor.dtype), count = tensor.bytes.size() / width;
  std::vector<double> largest(static_cast<size_t>(divide_up(static_cast<int64_t>(count), kSummarizedAtOnce)));
  parallel_chunks(static_cast<int64_t>(count), kSummarizedAtOnce, [&](int64_t first, int64_t last) {
    const Bytes some =
        tensor.bytes.subspan(static_cast<size_t>(first) * width, static_cast<size_t>(last - first) * width);
    double& most = largest[static_cast<size_t>(first / kSummarizedAtOnce)];
    for (float value : to_float32(tensor.dtype, some))
      most = std::isfinite(value) ? std::max(most, std::abs(double{value})) : std::numeric_limits<double>::infinity();
  });
  for (double value : largest) summary.max_magnitude = std::max(summary.max_magnitude, value);
  return summary;
}

double trace_sensitivity(const StoredHessian& hessian) {
  // Damping adds K times kCollectionDamping * mean(diag), that is kCollectionDamping times the trace.
  return (1 + kCollectionDamping) * hessian.trace() * static_cast<double>(hessian.token_count()) /
         static_cast<double>(hessian.sequence_count());
}

std::map<std::string, double> trace_sensitivities(const StoredHessians& hessians) {
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
    return coded_precision(tensor, kOtherMatrixBits, RoundingMethod::kNearest);
  });
  std::ranges::sort(ranking);
  for (size_t i = 0; i < ranking.size(); ++i) {
    int bits = static_cast<int64_t>(i) < options.high_count ? options.high_bits : options.low_bits;
    const std::string& name = ranking[i].second;
    plan[name] = coded_precision(tensors.at(name), bits, RoundingMethod::kGptq);
  }
  return plan;
}

Plan make_slope_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements) {
  return plan_of(tensors, min_elements, [&](const std::string& name, const TensorSummary& tensor) {
    if (!layers.contains(name)) return coded_precision(tensor, kOtherMatrixBits, RoundingMethod::kNearest);
    return Precision::row_scaled(max_code_of_bits(kOtherMatrixBits), RoundingMethod::kGptq);
  });
}

Plan make_nvfp4_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements) {
  return plan_of(tensors, min_elements, [&](const std::string& name, const TensorSummary& tensor) {
    if (tensor.max_magnitude > kMaxNvfp4Magnitude) return Precision::raw(tensor.dtype);
    return Precision::nvfp4(layers.contains(name) ? RoundingMethod::kGptq : RoundingMethod::kNearest);
  });
}

Matrix finite_matrix(const std::string& name, const TensorView& tensor) {
  if (tensor.shape.size() != 2)
    throw Error(ExitCode::kInternal,
                fmt::format("tensor '{}' has shape {}, only matrices have codes", name, shape_text(tensor.shape)));
  Matrix matrix = StoredMatrix(tensor, tensor.shape[0], tensor.shape[1], nullptr).widened();
  require_finite(name, matrix);
  return matrix;
}

void require_finite(const std::string& name, ConstMatrixView weights) {
  for (int64_t r = 0; r < weights.rows; ++r)
    for (int64_t k = 0; k < weights.cols; ++k)
      if (const float weight = weights.row(r)[k]; !std::isfinite(weight))
        throw Error(ExitCode::kBadInput,
                    fmt::format("tensor '{}': weight ({}, {}) is {}, must be finite", name, r, k, weight));
}

SolvedTensor quantize_tensor(const std::string& name, const TensorView& tensor, const Precision& precision,
                             const HessianFactor* factor) {
  if (precision.grid == Precision::Grid::kRaw)
    return {{name, tensor.shape, raw_tensor(tensor, precision.dtype)}, std::nullopt};

  Matrix weights = finite_matrix(name, tensor);
  const bool solves = precision.needs_hessian();
  if (solves && !factor)
    throw Error(ExitCode::kInternal, fmt::format("tensor '{}' is to be solved without a Hessian", name));
  if (precision.grid == Precision::Grid::kNvfp4) {
    if (!solves) return {{name, tensor.shape, quantize_nvfp4_to_nearest(weights)}, std::nullopt};
    Nvfp4GptqResult result = solve_gptq_nvfp4(weights, *factor, name);
    return {{name, tensor.shape, std::move(result.codes)}, std::move(result.report)};
  }
  if (!solves) return {{name, tensor.shape, quantize_rows_to_nearest(weights, precision.max_code, name)}, std::nullopt};
  GptqResult result = solve_gptq(weights, *factor, precision.max_code, name);
  return {{name, tensor.shape, std::move(result.codes)}, std::move(result.report)};
}

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
