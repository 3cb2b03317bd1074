// loader_script.h: the smallest program that reads one artifact: Python, numpy and the standard library, for budgets
// that count code. scripts/loader_source.py has it in words.
//   load("model.thmb"): float32 arrays by name, one matrix per layer
#pragma once

#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// The program that reads this artifact, and no other. Checksums and every rule of the format are checked here, not by
// the program. A UsageError(path) for an artifact of another kind than those of method slope in the weight coder whose
// other sections share one codec: none, xz or Brotli.
std::string loader_script(Bytes file, const std::string& path);

// At least as many bytes as the program has for any artifact below 10^10 bytes.
uint64_t most_loader_bytes();

}  // namespace thimble
