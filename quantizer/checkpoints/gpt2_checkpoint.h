// gpt2_checkpoint.h: the tensors of a GPT-2 state dict under the names and in the layout of gpt2_config.h, and back.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// How a file stores the four projections of a layer: as Conv1D of Hugging Face does, or as nn.Linear.
enum class ProjectionLayout { kInputOutput, kOutputInput };

// Is it a GPT-2 state dict: does the config say so or, naming no family, leave it to the tensors' names?
bool is_gpt2_checkpoint(const Json& config, const TensorMap& tensors);

// Names with the prefix "transformer.", which files of the bare model lack; two that become equal are a
// FormatError(path). Left out: the buffers ".attn.bias" and ".attn.masked_bias" (causal masks), and a "lm_head.weight"
// that repeats the token embedding byte for byte.
TensorMap with_gpt2_names(const TensorMap& tensors, const std::string& path);

// The projections as (out, in), without bytes: what resolve_gpt2_config() is to check before anything is allocated.
TensorMap with_transposed_shapes(const TensorMap& tensors);

// The same with their bytes, which lie in `storage`.
TensorMap with_transposed_projections(const TensorMap& tensors, std::vector<ByteVector>& storage);

// A matrix (rows, cols) as (cols, rows), any dtype.
Tensor transposed(const TensorView& matrix);

}  // namespace thimble
