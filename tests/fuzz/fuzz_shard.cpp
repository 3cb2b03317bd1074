// fuzz_shard.cpp: libFuzzer target: any bytes as a token shard, from memory and from a file.
// Accepted shards must account for every byte; anything else must be one of our errors.
#include <cstdlib>

#include "eval/text/token_shard.h"
#include "tests/fuzz/memory_file.h"

namespace {

// Parses the same bytes through a file; true when they were accepted.
bool accepted_as_file(thimble::Bytes bytes, size_t expected_tokens) {
  thimble::MemoryFile file(bytes);
  try {
    const std::vector<std::string> paths = {file.path()};
    if (thimble::read_shards(paths).size() != expected_tokens) std::abort();
    return true;
  } catch (const thimble::Error&) {
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  size_t tokens = 0;
  bool accepted = true;
  try {
    tokens = thimble::parse_shard(bytes, "fuzz").size();
    const size_t contents = size - thimble::kShardHeaderBytes;  // tokens of two or four bytes
    if (contents != 2 * tokens && contents != 4 * tokens) std::abort();
  } catch (const thimble::Error&) {
    accepted = false;
  }
  if (accepted_as_file(bytes, tokens) != accepted) std::abort();
  try {
    thimble::parse_shard(bytes, "fuzz", 1024);
  } catch (const thimble::Error&) {
  }
  return 0;
}
