// operator_reference.h: the operators of runtime/operators/operators.h in float64, from their definitions: what
// `thimble numerics` compares with. Plain loops in index order; no helper of the operators is used.
#pragma once

#include <span>

#include "runtime/operators/operators.h"

namespace thimble {

// The exact result of a call on the host, as good as float64 gives it: y (rows * cols), of kCrossEntropy (rows).
// `call.out` and `call.y` are not looked at.
void operator_reference(const OperatorCall& call, std::span<double> y);

// Elements of the result.
int64_t operator_output_count(const OperatorCall& call);

}  // namespace thimble
