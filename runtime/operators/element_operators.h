// element_operators.h: operators on single elements, for the same places as row_operators.h: float32 in between, one
// rounding at the end.
#pragma once

#include <cmath>

#include "runtime/tensor/row_access.h"

namespace thimble {

// GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415):
//   0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)),   u = sqrt(2/pi) (x + 0.044715 x^3)
// The right side keeps its relative precision where 1 + tanh(u) cancels.
struct Gelu {
  THIMBLE_HOST_DEVICE float operator()(float x) const {
    constexpr float kSlope = 1.5957691216057308f;  // 2 sqrt(2/pi)
    constexpr float kCube = kSlope * 0.044715f;
    return x / (1.0f + expf(-x * (kSlope + kCube * (x * x))));
  }
};

// cap * tanh(x / cap). Where the quotient is small, x itself is nearer than its product with a rounded quotient, which
// for subnormals has hardly a digit: tanh(t) = t (1 - t^2 / 3 + ...).
struct Softcap {
  float cap;  // > 0
  THIMBLE_HOST_DEVICE float operator()(float x) const {
    float t = x / cap;
    return fabsf(t) < 0x1p-13f ? x : cap * tanhf(t);
  }
};

// `function` of every element; lane l of a device computes pack l.
template <typename Function, typename InType, typename OutType>
struct ElementOperation {
  using In = InType;
  using Out = OutType;
  static constexpr int kPack = kPackOf<In, Out>;
  const In* x;
  Out* y;
  int64_t count;
  Function function;

  THIMBLE_HOST_DEVICE int64_t packs() const { return (count + kPack - 1) / kPack; }
  THIMBLE_HOST_DEVICE void operator()(int64_t pack) const {
    int64_t first = pack * kPack, left = count - first;
    bool whole = left >= kPack;
    int here = whole ? kPack : static_cast<int>(left);
    float values[kPack];
    read_pack<In, kPack>(x + first, whole && packs_are_aligned<In, kPack>(x, kPack), here, values);
    for (int i = 0; i < kPack; ++i) values[i] = function(values[i]);
    write_pack<Out, kPack>(y + first, whole && packs_are_aligned<Out, kPack>(y, kPack), here, values);
  }
};

}  // namespace thimble
