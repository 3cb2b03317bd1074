// cuda_activation.cuh: the nonlinearities of MLPs on single elements, in float32.
#pragma once

#include <type_traits>

#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/ops/activation.h"

namespace thimble {

// z / (1 + e^-t) to some units in the last place, by the hardware's own functions: an exact division and expf() take
// five times as many instructions, which epilogues of short products have no time for. Where e^-t exceeds 2^126 the
// quotient is -0.
__device__ inline float by_logistic(float z, float t) { return z * reciprocal_fast(1 + exp2_fast(-1.44269504f * t)); }
// z * logistic(1.59576912 (z + 0.044715 z^3)), without the cancellation of 1 + tanh at large negative z.
__device__ inline float gelu_tanh(float z) { return by_logistic(z, 1.59576912f * (z + 0.044715f * (z * z * z))); }
__device__ inline float silu(float z) { return by_logistic(z, z); }
template <Activation kActivation>
__device__ float activated(float z) {
  if constexpr (kActivation == Activation::kGeluTanh) return gelu_tanh(z);
  if constexpr (kActivation == Activation::kSilu) return silu(z);
  z = z < 0 ? 0.5f * z : z;
  return z * z;
}

// f'(z).
__device__ inline float activation_slope(Activation activation, float z) {
  switch (activation) {
    case Activation::kLeakyReluSquared: return z > 0 ? 2 * z : 0.5f * z;
    case Activation::kGeluTanh: {  // z sigma(t(z))
      constexpr float kTwoSqrtTwoOverPi = 1.59576912f;
      const float sigma = 1 / (1 + expf(-kTwoSqrtTwoOverPi * (z + 0.044715f * z * z * z)));
      return sigma + z * sigma * (1 - sigma) * kTwoSqrtTwoOverPi * (1 + 3 * 0.044715f * z * z);
    }
    case Activation::kSilu: {
      const float sigma = 1 / (1 + expf(-z));
      return sigma + z * sigma * (1 - sigma);
    }
  }
  return 1;
}

template <Activation kActivation>
using ActivationConstant = std::integral_constant<Activation, kActivation>;
// body(ActivationConstant<kActivation>()).
template <typename Body>
void with_activation(Activation activation, const Body& body) {
  switch (activation) {
    case Activation::kLeakyReluSquared: return body(ActivationConstant<Activation::kLeakyReluSquared>());
    case Activation::kGeluTanh: return body(ActivationConstant<Activation::kGeluTanh>());
    case Activation::kSilu: return body(ActivationConstant<Activation::kSilu>());
  }
}

}  // namespace thimble
