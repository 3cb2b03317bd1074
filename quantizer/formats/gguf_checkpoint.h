// gguf_checkpoint.h: a GGUF file of llama.cpp as a checkpoint: its tensors under the names, in the order of rows and
// with the values that Hugging Face's library has, with a config of its keys.
#pragma once

#include <string>

#include "quantizer/formats/checkpoint_contents.h"

namespace thimble {

// Tensors of F32, F16 and BF16 that lie in the file as they should are views of it; others are made in memory, those of
// quantized types in F32. FormatErrors(path) of read_gguf(), for an architecture that is not known, and of its family.
CheckpointContents read_gguf_checkpoint(Bytes file, const std::string& path);

}  // namespace thimble
