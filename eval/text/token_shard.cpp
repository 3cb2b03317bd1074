// token_shard.cpp: reads and writes token shards. In: untrusted files. Out: tokens whose every byte was accounted for.
#include "eval/text/token_shard.h"

#include <cassert>
#include <limits>

#include "runtime/base/atomic_file.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"

namespace thimble {
namespace {

constexpr int kHeaderWords = 256;

void expect_word(ByteCursor& cursor, const std::string& object, int32_t allowed) {
  auto found = cursor.read<int32_t>(object);
  if (found != allowed)
    throw FormatError(cursor.path(), object + " is " + std::to_string(found) + ", must be " + std::to_string(allowed));
}

struct Header {
  ShardFormat format;
  uint64_t count = 0;
};

Header parse_header(ByteCursor& cursor) {
  const auto magic = cursor.read<int32_t>("token shard magic");
  if (magic != kShard16.magic && magic != kShard32.magic)
    throw FormatError(cursor.path(), "token shard magic is " + std::to_string(magic) + ", must be " +
                                         std::to_string(kShard16.magic) + " or " + std::to_string(kShard32.magic));
  const ShardFormat& format = magic == kShard16.magic ? kShard16 : kShard32;
  expect_word(cursor, "token shard version", format.version);
  const auto count = cursor.read<int32_t>("token count");
  if (count < 0) throw FormatError(cursor.path(), "token count is " + std::to_string(count) + ", must not be negative");
  // Nobody assigns a meaning to the other words; one that is set means a format we do not know.
  for (int word = 3; word < kHeaderWords; ++word) expect_word(cursor, "header word " + std::to_string(word), 0);
  return {format, static_cast<uint64_t>(count)};
}

}  // namespace

TokenShard::TokenShard(Bytes file, std::string path, std::optional<int64_t> vocab_size)
    : path_(std::move(path)), vocab_size_(vocab_size) {
  refuse_other_kinds(file, FileUse::kTokenShard, path_);
  ByteCursor cursor(file, path_);
  const Header header = parse_header(cursor);
  token_bytes_ = header.format.token_bytes;
  count_ = header.count;
  const uint64_t bytes = count_ * token_bytes_;
  if (cursor.remaining() != bytes)
    throw FormatError(path_, "the header announces " + counted(count_, "token") + ", so the file must have " +
                                 std::to_string(kShardHeaderBytes + bytes) + " B; it has " +
                                 std::to_string(file.size()) + " B");
  raw_ = cursor.take(bytes, "tokens");
}

void TokenShard::read(uint64_t first, std::span<Token> tokens) const {
  assert(first + tokens.size() <= count_);
  const int64_t allowed = vocab_size_.value_or(kMostTokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::byte* at = raw_.data() + (first + i) * token_bytes_;
    const uint32_t token =
        token_bytes_ == sizeof(uint16_t) ? load_little_endian<uint16_t>(at) : load_little_endian<uint32_t>(at);
    if (token >= allowed)
      throw FormatError(path_, "token " + std::to_string(token) + " at position " + std::to_string(first + i) +
                                   ", the vocabulary has " + (vocab_size_ ? "" : "at most ") + std::to_string(allowed) +
                                   " tokens");
    tokens[i] = static_cast<Token>(token);
  }
}

std::vector<Token> parse_shard(Bytes file, const std::string& path, std::optional<int64_t> vocab_size) {
  const TokenShard shard(file, path, vocab_size);
  std::vector<Token> tokens(shard.count());
  shard.read(0, tokens);
  return tokens;
}

std::vector<Token> read_shards(std::span<const std::string> patterns, std::optional<int64_t> vocab_size) {
  std::vector<Token> tokens;
  for (const std::string& path : expand_patterns(patterns, kTokenShardFiles)) {
    MappedFile file(path);
    std::vector<Token> part = parse_shard(file.bytes(), path, vocab_size);
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  return tokens;
}

void write_shard(const std::string& path, std::span<const Token> tokens, int64_t vocab_size) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw UsageError(path + ": " + std::to_string(tokens.size()) + " tokens, a shard holds at most " +
                     std::to_string(std::numeric_limits<int32_t>::max()));
  const ShardFormat& format = shard_format(vocab_size);
  ByteVector bytes;
  bytes.reserve(kShardHeaderBytes + tokens.size() * format.token_bytes);
  append_little_endian(bytes, format.magic);
  append_little_endian(bytes, format.version);
  append_little_endian(bytes, static_cast<int32_t>(tokens.size()));
  bytes.resize(kShardHeaderBytes);
  for (Token token : tokens) {
    assert(token >= 0 && token < vocab_size);
    if (format.token_bytes == sizeof(uint16_t))
      append_little_endian(bytes, static_cast<uint16_t>(token));
    else
      append_little_endian(bytes, static_cast<uint32_t>(token));
  }
  write_file_atomically(path, Bytes(bytes));
}

}  // namespace thimble
