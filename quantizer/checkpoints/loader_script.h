// loader_script.h: the smallest program that reads one artifact: Python, its standard library and numpy, or torch on a
// GPU, for budgets that count code. scripts/loader_source.py has it in words.
//   load("model.thmb"): float32 arrays (tensors on device "cuda") by name, one matrix per layer
#pragma once

#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

enum class ArrayLibrary { kNumpy, kTorch };

// The program that reads this artifact, and no other. Checksums and every rule of the format are checked here, not by
// the program. A UsageError(path) for an artifact of another kind than those of method slope in the weight coder whose
// other sections share one codec: none, xz or Brotli.
std::string loader_script(Bytes file, const std::string& path, ArrayLibrary library = ArrayLibrary::kNumpy);

// At least as many bytes as the program has for any artifact below 10^10 bytes, with either library.
uint64_t most_loader_bytes();

}  // namespace thimble
