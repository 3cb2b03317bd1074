// operators.h: the verified low-precision operators: fp16 and bf16 storage (or integer codes), float32 arithmetic,
// output rounded once. Here on the host, the reference; cuda_operators.h is the same in device memory. What `thimble
// numerics` checks against float64.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "runtime/tensor/dtype.h"

namespace thimble {

enum class Operator : uint8_t {
  kSoftmax,
  kRmsNorm,
  kLayerNorm,
  kDequantizeSoftmax,
  kGelu,
  kSoftcap,
  kCrossEntropy,
};

inline constexpr std::array kOperators = {Operator::kSoftmax,           Operator::kRmsNorm, Operator::kLayerNorm,
                                          Operator::kDequantizeSoftmax, Operator::kGelu,    Operator::kSoftcap,
                                          Operator::kCrossEntropy};

constexpr std::array<std::string_view, kOperators.size()> kOperatorNames = {  // in the order of Operator
    "softmax", "rms_norm", "layer_norm", "dequantize_softmax", "gelu", "softcap", "cross_entropy"};
constexpr std::string_view operator_name(Operator op) { return kOperatorNames[static_cast<size_t>(op)]; }

// One call. Memory is the caller's: the host's for run_operator(), the device's for launch_operator(). Formulas and
// limits are at the operations in row_operators.h and element_operators.h.
struct OperatorCall {
  Operator op = Operator::kSoftmax;
  DType in = DType::kF16;            // F16 or BF16; of kDequantizeSoftmax: I8 or I16
  DType out = DType::kF32;           // F32 or the storage type; of kDequantizeSoftmax: F32, F16 or BF16
  int64_t rows = 0, cols = 0;        // cols >= 1
  const void* x = nullptr;           // (rows, cols) of `in`
  void* y = nullptr;                 // (rows, cols) of `out`; of kCrossEntropy: (rows). Must not overlap x
  const float* weight = nullptr;     // norms: (cols), or null
  const float* bias = nullptr;       // norms: (cols), or null
  const float* scale = nullptr;      // kDequantizeSoftmax: (rows), finite and >= 0
  const int32_t* targets = nullptr;  // kCrossEntropy: (rows), in [0, cols)
  float epsilon = 0;                 // norms
  float cap = 0;                     // kSoftcap, > 0

  int64_t output_count() const { return op == Operator::kCrossEntropy ? rows : rows * cols; }  // elements of y
};

// Throws Error for a combination of types that is not listed above.
void run_operator(const OperatorCall& call);

}  // namespace thimble
