// fuzz_index.cpp: any bytes are either a FormatError or an index whose shards are plain names in its folder; with the
// headers of shards behind it, the tensors joined are exactly those of the index.
// Input: the index, a zero byte, then a line "shard tensor" for each tensor in a header; without a zero byte, headers
// that agree with the index.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "quantizer/formats/checkpoint_index.h"
#include "runtime/base/error.h"

namespace {

using namespace thimble;

std::vector<TensorMap> read_headers(std::string_view lines, const CheckpointIndex& index) {
  std::vector<TensorMap> shards(index.shards.size());
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(lines.size(), line.size() + 1));
    const size_t space = line.find(' ');
    for (size_t i = 0; i < shards.size(); ++i)
      if (space != std::string_view::npos && line.substr(0, space) == index.shards[i])
        shards[i][std::string(line.substr(space + 1))] = {};
  }
  return shards;
}

std::vector<TensorMap> agreeing_headers(const CheckpointIndex& index) {
  std::vector<TensorMap> shards(index.shards.size());
  for (size_t i = 0; i < shards.size(); ++i)
    for (const auto& [name, shard] : index.shard_of)
      if (shard == index.shards[i]) shards[i][name] = {};
  return shards;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view text = input.substr(0, input.find('\0'));
  try {
    const CheckpointIndex index = parse_checkpoint_index(as_bytes_of(text), "folder/index");
    if (index.shards.empty() || index.shards.size() > kMostShards) std::abort();
    for (const std::string& shard : index.shards)
      if (shard.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos || shard == "..") std::abort();
    const bool agrees = text.size() == input.size();
    if (agrees && index.shards.size() > 64) return 0;  // quadratic here
    std::vector<TensorMap> shards =
        agrees ? agreeing_headers(index) : read_headers(input.substr(text.size() + 1), index);
    try {
      const TensorMap joined = join_shards(index, std::move(shards), "folder/index");
      if (joined.size() != index.shard_of.size()) std::abort();
      for (const auto& [name, tensor] : joined)
        if (!index.shard_of.contains(name)) std::abort();
    } catch (const FormatError&) {
      if (agrees) std::abort();
    }
  } catch (const FormatError&) {
  }
  return 0;
}
