// naive_golf.h: the golf-gpt forward pass once more, in float64 and the plainest loops, straight from the model's
// definition. What the fast one is tested against; shares nothing with it but the config and the tensor names.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/families/golf/golf_config.h"
#include "runtime/tensor/tensor.h"
#include "tests/runtime/families/naive_forward.h"

namespace thimble {

// One window from its start. `context_length` is T of the rotary base, at least the window's length.
NaiveForward naive_golf_forward(const GolfConfig& config, const TensorMap& unbanked, std::span<const Token> tokens,
                                int64_t context_length, const NaiveEdit& edit = {});

}  // namespace thimble
