// token_shard.h: token streams on disk.
// A shard is 256 little-endian int32 of header (magic 20240520, version 1, token count, zeros), then uint16 tokens.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

constexpr int32_t kShardMagic = 20240520;
constexpr int32_t kShardVersion = 1;
constexpr uint64_t kShardHeaderBytes = 256 * sizeof(int32_t);

// The tokens of one shard. `path` names it in errors. FormatError unless the header is exact, the length is the
// header plus two bytes per token, and every token is below `vocab_size` where that is known.
std::vector<uint16_t> parse_shard(Bytes file, const std::string& path, std::optional<int64_t> vocab_size = {});

// The files that the patterns (glob(3), or plain names) stand for: pattern after pattern, each one's matches in
// byte order of their names. IoError when one matches nothing, UsageError when a file is named twice.
std::vector<std::string> expand_shard_patterns(std::span<const std::string> patterns);

// The tokens of all these files, concatenated in the order of expand_shard_patterns().
std::vector<uint16_t> read_shards(std::span<const std::string> patterns, std::optional<int64_t> vocab_size = {});

// Writes one shard, whole or not at all. UsageError when the count does not fit the header's int32.
void write_shard(const std::string& path, std::span<const uint16_t> tokens);

}  // namespace thimble
