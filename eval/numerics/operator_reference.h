// operator_reference.h: the operators of runtime/operators/operators.h in float64, from their definitions: what
// `thimble numerics` compares with. Plain loops in index order; no helper of the operators is used. And how far a
// result is from it, beside what rounding to the output's type costs by itself, and whether that is within bounds.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "runtime/base/json.h"
#include "runtime/operators/operators.h"

namespace thimble {

// The exact result of a call on the host, as good as float64 gives it: y (rows * cols), of kCrossEntropy (rows).
// `call.out` and `call.y` are not looked at.
void operator_reference(const OperatorCall& call, std::span<double> y);

// What is allowed between a result y and the reference r:
//   float32 output   |y - r| <= absolute * max(1, |r|)  and  |y - r| <= relative * max(|r|, floor)
//   fp16, bf16       |y - r| <= half a unit in the last place of r + rounded_absolute * max(1, |r|)
// The floor is at least the output type's smallest normal number. Infinities and NaN are allowed nowhere.
struct ErrorBound {
  double absolute = 0, relative = 0, floor = 0;
  double rounded_absolute = 0;
  bool is_published = false;  // of mixed-precision softmax and norms: 5e-6 and 1e-5; the others are ours
};
ErrorBound error_bound(Operator op);

// Largest and mean |y - r|, and |y - r| / max(|r|, floor), over the elements where y is finite.
struct ErrorSummary {
  double max_absolute = 0, mean_absolute = 0, max_relative = 0, mean_relative = 0;
};

struct OperatorErrors {
  ErrorSummary found;
  ErrorSummary rounding;  // of r itself, rounded to the output's type
  int64_t nan_count = 0, infinity_count = 0;
  std::optional<int64_t> first_non_finite;  // index of the first of these
  double worst_share = 0;                   // largest error as a share of what is allowed there
  int64_t worst_index = 0;
  bool passed() const { return !first_non_finite && worst_share <= 1; }
};

// `found`: the result, of type `out`, as float32; as many elements as `reference`, at least one.
OperatorErrors compare_with_reference(std::span<const float> found, std::span<const double> reference, DType out,
                                      const ErrorBound& bound);

Json to_json(const ErrorSummary& errors);

}  // namespace thimble
