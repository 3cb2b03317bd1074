// operator_dispatch.h: from an OperatorCall to the operation of its types. `launch` is the place it runs at:
// launch.rows(operation, rows) for what row_operators.h defines, launch.elements(operation) for element_operators.h.
#pragma once

#include <string>

#include "runtime/base/error.h"
#include "runtime/operators/element_operators.h"
#include "runtime/operators/operators.h"
#include "runtime/operators/row_operators.h"

namespace thimble {

template <typename In, typename Out, typename Launch>
void dispatch_typed(const OperatorCall& call, const Launch& launch) {
  auto* x = static_cast<const In*>(call.x);
  auto* y = static_cast<Out*>(call.y);
  if constexpr (std::is_integral_v<In>) {
    launch.rows(SoftmaxRow<In, Out>{x, y, call.cols, call.scale}, call.rows);
  } else {
    NormGains gains{call.weight, call.bias};
    int64_t count = call.rows * call.cols;
    switch (call.op) {
      case Operator::kSoftmax: return launch.rows(SoftmaxRow<In, Out>{x, y, call.cols, nullptr}, call.rows);
      case Operator::kRmsNorm: return launch.rows(RmsNormRow<In, Out>{x, y, call.cols, gains, call.epsilon}, call.rows);
      case Operator::kLayerNorm:
        return launch.rows(LayerNormRow<In, Out>{x, y, call.cols, gains, call.epsilon}, call.rows);
      case Operator::kCrossEntropy:
        return launch.rows(CrossEntropyRow<In, Out>{x, y, call.cols, call.targets}, call.rows);
      case Operator::kGelu: return launch.elements(ElementOperation<Gelu, In, Out>{x, y, count, {}});
      case Operator::kSoftcap: return launch.elements(ElementOperation<Softcap, In, Out>{x, y, count, {call.cap}});
      case Operator::kDequantizeSoftmax: break;  // reads codes
    }
  }
}

template <typename Launch>
void dispatch_operator(const OperatorCall& call, const Launch& launch) {
  const bool fits = (call.op == Operator::kDequantizeSoftmax) != is_floating(call.in);
  auto is = [&](DType in, DType out) { return fits && call.in == in && call.out == out; };
  if (is(DType::kI8, DType::kF32)) return dispatch_typed<int8_t, float>(call, launch);
  if (is(DType::kI8, DType::kF16)) return dispatch_typed<int8_t, Fp16>(call, launch);
  if (is(DType::kI8, DType::kBF16)) return dispatch_typed<int8_t, Bf16>(call, launch);
  if (is(DType::kI16, DType::kF32)) return dispatch_typed<int16_t, float>(call, launch);
  if (is(DType::kI16, DType::kF16)) return dispatch_typed<int16_t, Fp16>(call, launch);
  if (is(DType::kI16, DType::kBF16)) return dispatch_typed<int16_t, Bf16>(call, launch);
  if (is(DType::kF16, DType::kF32)) return dispatch_typed<Fp16, float>(call, launch);
  if (is(DType::kF16, DType::kF16)) return dispatch_typed<Fp16, Fp16>(call, launch);
  if (is(DType::kBF16, DType::kF32)) return dispatch_typed<Bf16, float>(call, launch);
  if (is(DType::kBF16, DType::kBF16)) return dispatch_typed<Bf16, Bf16>(call, launch);
  throw Error(ExitCode::kInternal, std::string(operator_name(call.op)) + " from " + std::string(dtype_name(call.in)) +
                                       " to " + std::string(dtype_name(call.out)) + " does not exist");
}

}  // namespace thimble
