// activation.h: the nonlinearities of networks.
#pragma once

#include <cstdint>

namespace thimble {

enum class Activation : uint8_t {
  kLeakyReluSquared,  // leaky_relu(z, 0.5)^2
  kGeluTanh,          // z / 2 * (1 + tanh(sqrt(2 / pi) * (z + 0.044715 z^3))) (arXiv 1606.08415, section 2)
  kSilu,              // z / (1 + exp(-z))
};

}  // namespace thimble
