// llama_gguf.h: Llama and its relatives in GGUF files of llama.cpp, whose converter is the reference for names, keys
// and values.
#pragma once

#include "runtime/families/gguf_model.h"
#include "runtime/families/llama/llama_config.h"

namespace thimble {

// "general.architecture": a Mistral's is that of a Llama.
std::string_view gguf_architecture(const LlamaVariant& variant);

// Config and parameters of a file with this metadata and these tensors, those of F32 with bytes. FormatErrors(path) for
// a key that is missing, or that changes the forward pass in a way that is not known here, and for tensors that are not
// the model's.
GgufModel llama_from_gguf(const LlamaVariant& variant, const Json& metadata, const TensorMap& tensors,
                          const std::string& path);

// The inverse. A UsageError(path) for what llama.cpp does not run under this architecture: other scales of scores and
// windows of a Gemma than its own, biases, scalings of rotary frequencies. A window that is not known to llama.cpp
// becomes the length of the context, within which it makes no difference.
GgufModel llama_to_gguf(const LlamaConfig& config, const std::string& path);

}  // namespace thimble
