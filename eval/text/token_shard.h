// token_shard.h: token streams on disk.
// A shard is 256 little-endian int32 of header (magic, version, token count, zeros), then the tokens:
//   magic 20240520, version 1   uint16, for vocabularies of at most 65,536 tokens
//   magic 20240801, version 7   uint32
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "eval/text/file_patterns.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

struct ShardFormat {
  int32_t magic = 0, version = 0;
  uint64_t token_bytes = 0;
};
constexpr ShardFormat kShard16 = {20240520, 1, 2}, kShard32 = {20240801, 7, 4};
constexpr int64_t kShard16Vocabulary = 65536;
constexpr uint64_t kShardHeaderBytes = 256 * sizeof(int32_t);

// The narrower one that holds such a vocabulary.
constexpr const ShardFormat& shard_format(int64_t vocab_size) {
  return vocab_size <= kShard16Vocabulary ? kShard16 : kShard32;
}

// A shard in memory or in a mapped file, read where somebody asks. The bytes must outlive it.
class TokenShard {
 public:
  // `path` names it in errors. FormatError unless the header is exact and the length is the header plus its tokens.
  TokenShard(Bytes file, std::string path, std::optional<int64_t> vocab_size = {});

  uint64_t count() const { return count_; }
  // Tokens from number `first` on, all below count(). FormatError unless every one is below `vocab_size` where that is
  // known, else kMostTokens.
  void read(uint64_t first, std::span<Token> tokens) const;

 private:
  std::string path_;
  std::optional<int64_t> vocab_size_;
  Bytes raw_;
  uint64_t count_ = 0, token_bytes_ = 0;
};

// All tokens of one shard. FormatErrors of TokenShard.
std::vector<Token> parse_shard(Bytes file, const std::string& path, std::optional<int64_t> vocab_size = {});

// What expand_patterns() calls shards.
constexpr const char* kTokenShardFiles = "token shard";

// The tokens of all these files, concatenated in the order of expand_patterns().
std::vector<Token> read_shards(std::span<const std::string> patterns, std::optional<int64_t> vocab_size = {});

// Writes one shard, whole or not at all, in shard_format(vocab_size). UsageError when the count
// does not fit the header's int32.
void write_shard(const std::string& path, std::span<const Token> tokens, int64_t vocab_size);

}  // namespace thimble
