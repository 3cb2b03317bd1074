// token_shard.cpp: reads and writes token shards. In: untrusted files. Out: tokens whose every byte was accounted for.
#include "eval/text/token_shard.h"

#include <glob.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <filesystem>
#include <limits>
#include <set>
#include <system_error>

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

struct GlobResult {
  glob_t matches{};
  ~GlobResult() { globfree(&matches); }
};

std::vector<std::string> files_matching(const std::string& pattern) {
  if (file_exists(pattern)) return {pattern};  // also a name that holds '[' or '*'
  GlobResult result;
  int status = ::glob(pattern.c_str(), GLOB_ERR | GLOB_NOSORT, nullptr, &result.matches);
  if (status == GLOB_NOMATCH) throw IoError(pattern, "no token shard has this name or matches this pattern", ENOENT);
  if (status != 0) throw IoError(pattern, "cannot search for token shards", status == GLOB_NOSPACE ? ENOMEM : errno);
  std::vector<std::string> files(result.matches.gl_pathv, result.matches.gl_pathv + result.matches.gl_pathc);
  std::sort(files.begin(), files.end());  // byte order: glob's own sorting follows the locale
  return files;
}

}  // namespace

std::vector<Token> parse_shard(Bytes file, const std::string& path, std::optional<int64_t> vocab_size) {
  refuse_other_kinds(file, FileUse::kTokenShard, path);
  ByteCursor cursor(file, path);
  const Header header = parse_header(cursor);
  const uint64_t token_bytes = header.format.token_bytes, bytes = header.count * token_bytes;
  if (cursor.remaining() != bytes)
    throw FormatError(path, "the header announces " + counted(header.count, "token") + ", so the file must have " +
                                std::to_string(kShardHeaderBytes + bytes) + " B; it has " +
                                std::to_string(file.size()) + " B");
  const Bytes raw = cursor.take(bytes, "tokens");
  std::vector<Token> tokens(header.count);
  const int64_t allowed = vocab_size.value_or(kMostTokens);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const std::byte* at = raw.data() + i * token_bytes;
    const uint32_t token =
        token_bytes == sizeof(uint16_t) ? load_little_endian<uint16_t>(at) : load_little_endian<uint32_t>(at);
    if (token >= allowed)
      throw FormatError(path, "token " + std::to_string(token) + " at position " + std::to_string(i) +
                                  ", the vocabulary has " + (vocab_size ? "" : "at most ") + std::to_string(allowed) +
                                  " tokens");
    tokens[i] = static_cast<Token>(token);
  }
  return tokens;
}

std::vector<std::string> expand_shard_patterns(std::span<const std::string> patterns) {
  std::vector<std::string> files;
  std::set<std::filesystem::path> seen;
  for (const std::string& pattern : patterns) {
    for (const std::string& file : files_matching(pattern)) {
      std::error_code unresolved;
      std::filesystem::path canonical = std::filesystem::weakly_canonical(file, unresolved);
      if (!seen.insert(unresolved ? std::filesystem::path(file) : canonical).second)
        throw UsageError("token shard " + file + " is named twice; its targets would be scored twice");
      files.push_back(file);
    }
  }
  return files;
}

std::vector<Token> read_shards(std::span<const std::string> patterns, std::optional<int64_t> vocab_size) {
  std::vector<Token> tokens;
  for (const std::string& path : expand_shard_patterns(patterns)) {
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
