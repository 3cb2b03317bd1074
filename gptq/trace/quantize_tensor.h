// quantize_tensor.h: one tensor of a checkpoint to one tensor of a QuantizedModel, as its precision says.
#pragma once

#include <optional>
#include <string>

#include "gptq/factor/hessian_factor.h"
#include "gptq/trace/gptq_solver.h"
#include "gptq/trace/plan.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

struct SolvedTensor {
  QuantizedTensor tensor;
  std::optional<GptqReport> report;  // for a precision that needs a Hessian
};

// A tensor's weights (R, K) as float32. One that is not finite is an Error (bad input) that names the tensor.
Matrix finite_matrix(const std::string& name, const TensorView& tensor);

// `factor` belongs to the tensor's Hessian; required where needs_hessian(precision), ignored otherwise.
// Codes are made of matrices (R, K); any tensor can be raw. A weight that is not finite, and a row that fp16 scales
// cannot reach, are Errors (bad input) that name the tensor.
SolvedTensor quantize_tensor(const std::string& name, const TensorView& tensor, const Precision& precision,
                             const HessianFactor* factor);

}  // namespace thimble
