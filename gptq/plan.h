// plan.h: which precision each tensor gets, by the method `trace`.
// In: what tensors there are, and the sensitivities of the layers with a Hessian.  Out: Plan.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <variant>
#include <vector>

#include "runtime/tensor.h"

namespace thimble {

// Integer codes with one scale per output row (RowScaledCodes).
struct RowScaledPrecision {
  enum class Rounding { kNearest, kGptq };
  int max_code = 0;
  Rounding rounding = Rounding::kNearest;
  bool operator==(const RowScaledPrecision&) const = default;
};

// The elements themselves, in `dtype`.
struct RawPrecision {
  DType dtype = DType::kF16;
  bool operator==(const RawPrecision&) const = default;
};

using Precision = std::variant<RowScaledPrecision, RawPrecision>;

// "int5 gptq", "int8 nearest", "F16".
std::string precision_text(const Precision& precision);

// By tensor name.
using Plan = std::map<std::string, Precision>;

// What the plan must know about a tensor.
struct TensorSummary {
  DType dtype = DType::kF32;
  Shape shape;
  double max_magnitude = 0;  // of floating elements as float32; infinity when one of them is not finite
};

TensorSummary summarize_tensor(const TensorView& tensor);

struct TracePlanOptions {
  int low_bits = 5;              // 2 to 8
  int high_bits = 6;             // low_bits to 8
  int64_t high_count = 10;       // the most sensitive matrices, which get high_bits
  int64_t min_elements = 65536;  // matrices of more elements are quantized
};

// The allocation of the method `trace`:
//   floating matrices above min_elements with a sensitivity: GPTQ, high_bits for the high_count most sensitive (ties by
//     name), low_bits for the others;
//   other floating matrices above min_elements: 8 bits per row, nearest;
//   everything else: fp16, or its own dtype when it is not floating or exceeds fp16's range.
// A matrix that no fp16 row scale can reach keeps its own dtype. Sensitivities of smaller matrices are ignored.
// A matrix above min_elements with a value that is not finite is an Error (bad input); options out of range are
// UsageErrors.
Plan make_trace_plan(const std::map<std::string, TensorSummary>& tensors,
                     const std::map<std::string, double>& sensitivities, const TracePlanOptions& options);

}  // namespace thimble
