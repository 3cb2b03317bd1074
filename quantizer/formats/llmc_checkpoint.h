// llmc_checkpoint.h: GPT-2 checkpoints (.bin) of llm.c, versions 3 (float32) and 5 (bfloat16).
//
//   256 int32, little-endian: magic 20240326, version, T positions, V vocabulary, n layers, H heads, D width,
//                             padded vocabulary Vp >= V, then 248 that are not read
//   parameters, one after another: wte (Vp, D), wpe (T, D), ln1w, ln1b (n, D), qkvw (n, 3D, D), qkvb (n, 3D),
//     attprojw (n, D, D), attprojb (n, D), ln2w, ln2b (n, D), fcw (n, 4D, D), fcb (n, 4D), fcprojw (n, D, 4D),
//     fcprojb (n, D), lnfw, lnfb (D)
//
// The file ends there. Matrices are (out, in); the head is tied to wte. Rows of wte beyond V are padding and left out.
#pragma once

#include <string>

#include "quantizer/formats/checkpoint_contents.h"

namespace thimble {

// Does the file begin with the magic number?
bool looks_like_llmc(Bytes file);

// Views into the file, one per layer, under the names and in the layout of gpt2_config.h, and the config as
// to_json(Gpt2Config) writes it. Throws FormatError(path, ...) for another version, sizes out of range, and a file that
// is not exactly as long as its header says.
CheckpointContents read_llmc_checkpoint(Bytes file, const std::string& path);

}  // namespace thimble
