// naive_llama.h: the forward pass of Llama and its relatives once more, in float64 and the plainest loops, from the
// models' definitions. What the fast one is tested against; shares nothing with it but the config and tensor names.
#pragma once

#include <span>

#include "runtime/families/llama/llama_config.h"
#include "runtime/tensor/tensor.h"
#include "tests/runtime/families/naive_forward.h"

namespace thimble {

// One window from its start.
NaiveForward naive_llama_forward(const LlamaConfig& config, const TensorMap& tensors, std::span<const Token> tokens,
                                 const NaiveEdit& edit = {});

}  // namespace thimble
