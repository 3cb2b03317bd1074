// naive_gpt2.h: the GPT-2 forward pass once more, in float64 and the plainest loops, straight from the model's
// definition. What the fast one is tested against; shares nothing with it but the config and the tensor names.
#pragma once

#include <span>

#include "runtime/families/gpt2/gpt2_config.h"
#include "runtime/tensor/tensor.h"
#include "tests/runtime/families/naive_forward.h"

namespace thimble {

// One window from its start. `tensors`: projections as (out, in).
NaiveForward naive_gpt2_forward(const Gpt2Config& config, const TensorMap& tensors, std::span<const Token> tokens,
                                const NaiveEdit& edit = {});

}  // namespace thimble
