// scratch_file.h: room for many bytes that a program makes once and then only reads, such as the values of quantized
// tensors: in memory up to a limit, above it in a file without a name, whose pages the system can write out and drop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace thimble {

struct ScratchBytes {
  std::span<std::byte> bytes;         // zeros at first, aligned for numbers
  std::shared_ptr<const void> owner;  // the file goes with its last copy, however the program ends
};

// The file lies in the folder that the environment variable TMPDIR names, else in /var/tmp, which is on a disk where
// /tmp may be memory, and takes its room on the disk at once: IoErrors (exit 5) for a folder that is not there or not
// writable, and for a disk without so much room.
ScratchBytes make_scratch(uint64_t size_bytes, uint64_t most_in_memory_bytes);

}  // namespace thimble
