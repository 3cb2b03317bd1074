// operator_reference.cpp: the definitions, row by row, in float64; and the comparison, element by element, in chunks of
// a fixed size whose sums are added in order.
#include "eval/numerics/operator_reference.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

using Row = std::vector<double>;

constexpr int64_t kComparedPerTask = 1 << 15;

void softmax(const Row& x, double scale, double* y) {
  double peak = *std::ranges::max_element(x), sum = 0;
  for (double value : x) sum += std::exp(scale * (value - peak));
  for (size_t i = 0; i < x.size(); ++i) y[i] = std::exp(scale * (x[i] - peak)) / sum;
}

double cross_entropy(const Row& x, int32_t target) {
  double peak = *std::ranges::max_element(x), sum = 0;
  for (double value : x) sum += std::exp(value - peak);
  return peak - x[static_cast<size_t>(target)] + std::log(sum);
}

// (x - centre) / sqrt(mean((x - centre)^2) + epsilon) with the gains.
void norm(const Row& x, double centre, const OperatorCall& call, double* y) {
  double squares = 0;
  for (double value : x) squares += (value - centre) * (value - centre);
  double deviation = std::sqrt(squares / static_cast<double>(x.size()) + static_cast<double>(call.epsilon));
  for (size_t i = 0; i < x.size(); ++i) {
    y[i] = (x[i] - centre) / deviation;
    if (call.weight) y[i] *= static_cast<double>(call.weight[i]);
    if (call.bias) y[i] += static_cast<double>(call.bias[i]);
  }
}

double mean(const Row& x) {
  double sum = 0;
  for (double value : x) sum += value;
  return sum / static_cast<double>(x.size());
}

// x (1 + tanh u) / 2 with 1 + tanh u = 2 e^2u / (1 + e^2u), which does not cancel for u < 0.
double gelu(double x) {
  double u = std::sqrt(2 / std::acos(-1.0)) * (x + 0.044715 * x * x * x);
  if (u >= 0) return 0.5 * x * (1 + std::tanh(u));
  double e = std::exp(2 * u);
  return x * e / (1 + e);
}

Row read_row(const OperatorCall& call, int64_t r) {
  size_t bytes = static_cast<size_t>(call.cols) * dtype_bytes(call.in);
  Bytes stored(static_cast<const std::byte*>(call.x) + static_cast<size_t>(r) * bytes, bytes);
  std::vector<float> exact = to_float32(call.in, stored);
  return {exact.begin(), exact.end()};
}

void reference_row(const OperatorCall& call, int64_t r, std::span<double> y) {
  Row x = read_row(call, r);
  double* to = y.data() + (call.op == Operator::kCrossEntropy ? r : r * call.cols);
  switch (call.op) {
    case Operator::kSoftmax: return softmax(x, 1, to);
    case Operator::kDequantizeSoftmax: return softmax(x, static_cast<double>(call.scale[r]), to);
    case Operator::kRmsNorm: return norm(x, 0, call, to);
    case Operator::kLayerNorm: return norm(x, mean(x), call, to);
    case Operator::kCrossEntropy: *to = cross_entropy(x, call.targets[r]); return;
    case Operator::kGelu: std::ranges::transform(x, to, gelu); return;
    case Operator::kSoftcap:
      std::ranges::transform(x, to,
                             [cap = static_cast<double>(call.cap)](double v) { return cap * std::tanh(v / cap); });
      return;
  }
}

struct FloatFormat {
  int fraction_bits, min_exponent;
};

FloatFormat format_of(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {23, -126};
    case DType::kF16: return {10, -14};
    case DType::kBF16: return {7, -126};
    default: throw Error(ExitCode::kInternal, std::string(dtype_name(dtype)) + " is no output type of operators");
  }
}

// Half a unit in the last place at r.
double half_unit(const FloatFormat& format, double r) {
  int exponent = r == 0 ? format.min_exponent : std::max(std::ilogb(r), format.min_exponent);
  return std::ldexp(0.5, exponent - format.fraction_bits);
}

double rounded(DType out, double r) {
  auto nearest = static_cast<float>(r);
  if (out == DType::kF16) return float_from_fp16(fp16_from_float(nearest));
  if (out == DType::kBF16) return float_from_bf16(bf16_from_float(nearest));
  return nearest;
}

void merge(ErrorSummary& all, const ErrorSummary& part) {
  all.max_absolute = std::max(all.max_absolute, part.max_absolute);
  all.max_relative = std::max(all.max_relative, part.max_relative);
  all.mean_absolute += part.mean_absolute;
  all.mean_relative += part.mean_relative;
}

void add(ErrorSummary& sum, double error, double size) { merge(sum, {error, error, error / size, error / size}); }

struct Comparison {
  DType out;
  ErrorBound bound;
  FloatFormat format = format_of(out);
  double floor = std::max(bound.floor, std::ldexp(1.0, format.min_exponent));

  // Means are sums here.
  OperatorErrors of(std::span<const float> found, std::span<const double> reference, int64_t begin, int64_t end) const {
    OperatorErrors errors;
    for (int64_t i = begin; i < end; ++i) {
      double y = found[static_cast<size_t>(i)], r = reference[static_cast<size_t>(i)];
      double size = std::max(std::abs(r), floor);
      add(errors.rounding, std::abs(rounded(out, r) - r), size);
      if (!std::isfinite(y)) {
        ++(std::isnan(y) ? errors.nan_count : errors.infinity_count);
        if (!errors.first_non_finite) errors.first_non_finite = i;
        continue;
      }
      double error = std::abs(y - r);
      add(errors.found, error, size);
      if (double share = error / allowed(r, size); share > errors.worst_share) {
        errors.worst_share = share;
        errors.worst_index = i;
      }
    }
    return errors;
  }

  double allowed(double r, double size) const {
    double magnitude = std::max(1.0, std::abs(r));
    if (out != DType::kF32) return half_unit(format, r) + bound.rounded_absolute * magnitude;
    return std::min(bound.absolute * magnitude, bound.relative * size);
  }
};

}  // namespace

void operator_reference(const OperatorCall& call, std::span<double> y) {
  assert(static_cast<int64_t>(y.size()) == call.output_count());
  parallel_chunks(call.rows, std::max<int64_t>(1, kComparedPerTask / call.cols), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) reference_row(call, r, y);
  });
}

ErrorBound error_bound(Operator op) {
  switch (op) {
    case Operator::kSoftmax:
    case Operator::kDequantizeSoftmax: return {5e-6, 1e-5, 0, 1e-6, true};
    case Operator::kRmsNorm: return {5e-6, 1e-5, 0, 5e-6, true};
    // x - mean cancels: relative to 1, the size of a normed row.
    case Operator::kLayerNorm: return {5e-6, 1e-5, 1, 5e-6, true};
    // Below fp16's smallest number the tail's exponent has no more digits to give.
    case Operator::kGelu: return {1e-6, 1e-5, 0x1p-24, 1e-6, false};
    case Operator::kSoftcap: return {1e-6, 1e-6, 0, 1e-6, false};
    // A loss near 0 is the logarithm of a sum near 1.
    case Operator::kCrossEntropy: return {1e-6, 1e-6, 1, 1e-6, false};
  }
  throw Error(ExitCode::kInternal, "unknown operator");
}

OperatorErrors compare_with_reference(std::span<const float> found, std::span<const double> reference, DType out,
                                      const ErrorBound& bound) {
  assert(found.size() == reference.size() && !found.empty());
  const Comparison comparison{out, bound};
  auto count = static_cast<int64_t>(found.size());
  std::vector<OperatorErrors> parts(static_cast<size_t>((count + kComparedPerTask - 1) / kComparedPerTask));
  parallel_chunks(count, kComparedPerTask, [&](int64_t begin, int64_t end) {
    parts[static_cast<size_t>(begin / kComparedPerTask)] = comparison.of(found, reference, begin, end);
  });
  OperatorErrors all;
  for (const OperatorErrors& part : parts) {
    merge(all.found, part.found);
    merge(all.rounding, part.rounding);
    all.nan_count += part.nan_count;
    all.infinity_count += part.infinity_count;
    if (!all.first_non_finite) all.first_non_finite = part.first_non_finite;
    if (part.worst_share > all.worst_share) {
      all.worst_share = part.worst_share;
      all.worst_index = part.worst_index;
    }
  }
  auto finite = static_cast<double>(std::max<int64_t>(1, count - all.nan_count - all.infinity_count));
  all.found.mean_absolute /= finite;
  all.found.mean_relative /= finite;
  all.rounding.mean_absolute /= static_cast<double>(count);
  all.rounding.mean_relative /= static_cast<double>(count);
  return all;
}

Json to_json(const ErrorSummary& errors) {
  return {{"max_absolute", errors.max_absolute},
          {"mean_absolute", errors.mean_absolute},
          {"max_relative", errors.max_relative},
          {"mean_relative", errors.mean_relative}};
}

}  // namespace thimble
