// quantize_tensor.cpp: see quantize_tensor.h.
#include "gptq/trace/quantize_tensor.h"

#include <fmt/format.h>

#include <cmath>

#include "gptq/trace/grid.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

RawTensor raw_tensor(const TensorView& tensor, DType dtype) {
  if (dtype == tensor.dtype) return {dtype, ByteVector(tensor.bytes.begin(), tensor.bytes.end())};
  return {dtype, from_float32(dtype, to_float32(tensor))};
}

}  // namespace

Matrix finite_matrix(const std::string& name, const TensorView& tensor) {
  if (tensor.shape.size() != 2)
    throw Error(ExitCode::kInternal,
                fmt::format("tensor '{}' has shape {}, only matrices have codes", name, shape_text(tensor.shape)));
  Matrix matrix(to_float32(tensor), tensor.shape[0], tensor.shape[1]);
  for (int64_t r = 0; r < matrix.rows(); ++r)
    for (int64_t k = 0; k < matrix.cols(); ++k)
      if (!std::isfinite(matrix(r, k)))
        throw Error(ExitCode::kBadInput,
                    fmt::format("tensor '{}': weight ({}, {}) is {}, must be finite", name, r, k, matrix(r, k)));
  return matrix;
}

SolvedTensor quantize_tensor(const std::string& name, const TensorView& tensor, const Precision& precision,
                             const HessianFactor* factor) {
  if (const auto* raw = std::get_if<RawPrecision>(&precision))
    return {{name, tensor.shape, raw_tensor(tensor, raw->dtype)}, std::nullopt};

  Matrix weights = finite_matrix(name, tensor);
  const bool solves = needs_hessian(precision);
  if (solves && !factor)
    throw Error(ExitCode::kInternal, fmt::format("tensor '{}' is to be solved without a Hessian", name));
  if (std::holds_alternative<Nvfp4Precision>(precision)) {
    if (!solves) return {{name, tensor.shape, quantize_nvfp4_to_nearest(weights)}, std::nullopt};
    Nvfp4GptqResult result = solve_gptq_nvfp4(weights, *factor, name);
    return {{name, tensor.shape, std::move(result.codes)}, std::move(result.report)};
  }
  const int max_code = std::get<RowScaledPrecision>(precision).max_code;
  if (!solves) return {{name, tensor.shape, quantize_rows_to_nearest(weights, max_code, name)}, std::nullopt};
  GptqResult result = solve_gptq(weights, *factor, max_code, name);
  return {{name, tensor.shape, std::move(result.codes)}, std::move(result.report)};
}

}  // namespace thimble
