// plan.h: which precision each tensor gets, by the methods `trace` and `nvfp4`, and which matrices `slope` solves; a
// tensor at its precision; and the pruning of codes that `trace` ends with.
// In: what tensors there are, and the sensitivities of the layers with a Hessian.  Out: Plan.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gptq/statistics/stored_statistics.h"
#include "gptq/trace/gptq_solver.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// To the nearest point of the grid each weight by itself, or by GPTQ, which takes a Hessian.
enum class RoundingMethod { kNearest, kGptq };

// What becomes of a tensor.
struct Precision {
  enum class Grid { kRaw, kRowScaled, kNvfp4 };  // the elements themselves, RowScaledCodes, Nvfp4Codes
  Grid grid = Grid::kRaw;
  DType dtype = DType::kF16;  // of raw elements
  int max_code = 0;           // of row-scaled codes
  RoundingMethod rounding = RoundingMethod::kNearest;

  static Precision raw(DType dtype) { return {.dtype = dtype}; }
  static Precision row_scaled(int max_code, RoundingMethod rounding) {
    return {.grid = Grid::kRowScaled, .max_code = max_code, .rounding = rounding};
  }
  static Precision nvfp4(RoundingMethod rounding) { return {.grid = Grid::kNvfp4, .rounding = rounding}; }
  bool needs_hessian() const { return rounding == RoundingMethod::kGptq; }
  bool operator==(const Precision&) const = default;
};

// "int5 gptq", "int8 nearest", "nvfp4 gptq", "F16".
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

// How much a layer's output suffers from errors in its weights, by the method `trace`; only the order of layers
// matters. The trace of the sum of x x^T over all tokens / sequences, damped by kCollectionDamping: an error of equal
// variance in every weight of an output row changes the squared output in proportion to it.
double trace_sensitivity(const StoredHessian& hessian);
std::map<std::string, double> trace_sensitivities(const StoredHessians& hessians);

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

// What the method `slope` solves, and what it leaves to others: floating matrices above min_elements in `layers` are
// marked as in need of a Hessian, whatever bits that names, for their steps reach any weight; all else as in
// make_trace_plan(). Errors as above.
Plan make_slope_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements);

// The allocation of the method `nvfp4`, which has no choice: floating matrices above min_elements in NVFP4, by GPTQ
// those in `layers` and to nearest the others; everything else as above. Errors as above.
Plan make_nvfp4_plan(const std::map<std::string, TensorSummary>& tensors, const std::set<std::string>& layers,
                     int64_t min_elements);

// One tensor of a checkpoint to one tensor of a QuantizedModel.
struct SolvedTensor {
  QuantizedTensor tensor;
  std::optional<GptqReport> report;  // for a precision that needs a Hessian
};

// A tensor's weights (R, K) as float32. One that is not finite is an Error (bad input) that names the tensor.
Matrix finite_matrix(const std::string& name, const TensorView& tensor);
void require_finite(const std::string& name, ConstMatrixView weights);

// `factor` belongs to the tensor's Hessian; required where precision.needs_hessian(), ignored otherwise.
// Codes are made of matrices (R, K); any tensor can be raw. A weight that is not finite, and a row that fp16 scales
// cannot reach, are Errors (bad input) that name the tensor.
SolvedTensor quantize_tensor(const std::string& name, const TensorView& tensor, const Precision& precision,
                             const HessianFactor* factor);

// Codes +-1 in the tensors that `plan` solves by GPTQ.
int64_t count_prunable(const QuantizedModel& model, const Plan& plan);

// Sets the first `count` of these codes to 0, in ascending squared scale (the squared error that it adds), then by
// tensor name, then by position. Returns how many were set: less than `count` when there are no more.
int64_t prune_smallest(QuantizedModel& model, const Plan& plan, int64_t count);

}  // namespace thimble
