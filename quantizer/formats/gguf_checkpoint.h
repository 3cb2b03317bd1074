// gguf_checkpoint.h: a GGUF file of llama.cpp as a checkpoint: its tensors under the names, in the order of rows and
// with the values that Hugging Face's library has, with a config of its keys.
#pragma once

#include <cstdint>
#include <string>

#include "quantizer/formats/checkpoint_contents.h"
#include "runtime/families/family.h"

namespace thimble {

constexpr uint64_t kMostGgufScratchInMemory = uint64_t{64} << 20;

// Tensors of F32, F16 and BF16 that lie in the file as they should are views of it. Others are made, those of quantized
// types in F32: together in memory up to `most_in_memory_bytes`, else in a temporary file (make_scratch(), whose
// IoErrors pass); of Contents::kShapes they have no bytes. FormatErrors(path) of read_gguf(), for an architecture that
// is not known, and of its family.
CheckpointContents read_gguf_checkpoint(Bytes file, const std::string& path, Contents contents = Contents::kBytes,
                                        uint64_t most_in_memory_bytes = kMostGgufScratchInMemory);

}  // namespace thimble
