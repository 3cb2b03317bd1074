// token_shard.cpp: reads and writes token shards. In: untrusted files. Out: tokens whose every byte was accounted for.
#include "eval/text/token_shard.h"

#include <glob.h>

#include <algorithm>
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

// Reads the header and returns the token count.
uint64_t parse_header(ByteCursor& cursor) {
  expect_word(cursor, "token shard magic", kShardMagic);
  expect_word(cursor, "token shard version", kShardVersion);
  auto count = cursor.read<int32_t>("token count");
  if (count < 0) throw FormatError(cursor.path(), "token count is " + std::to_string(count) + ", must not be negative");
  // Nobody assigns a meaning to the other words; one that is set means a format we do not know.
  for (int word = 3; word < kHeaderWords; ++word) expect_word(cursor, "header word " + std::to_string(word), 0);
  return static_cast<uint64_t>(count);
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

std::vector<uint16_t> parse_shard(Bytes file, const std::string& path, std::optional<int64_t> vocab_size) {
  refuse_other_kinds(file, FileUse::kTokenShard, path);
  ByteCursor cursor(file, path);
  uint64_t count = parse_header(cursor);
  if (cursor.remaining() != count * sizeof(uint16_t))
    throw FormatError(path, "the header announces " + counted(count, "token") + ", so the file must have " +
                                std::to_string(kShardHeaderBytes + count * sizeof(uint16_t)) + " B; it has " +
                                std::to_string(file.size()) + " B");
  Bytes raw = cursor.take(cursor.remaining(), "tokens");
  std::vector<uint16_t> tokens(count);
  for (size_t i = 0; i < count; ++i)
    tokens[i] =
        static_cast<uint16_t>(std::to_integer<unsigned>(raw[2 * i]) | std::to_integer<unsigned>(raw[2 * i + 1]) << 8);
  if (vocab_size) {
    auto bad = std::find_if(tokens.begin(), tokens.end(), [&](uint16_t token) { return token >= *vocab_size; });
    if (bad != tokens.end())
      throw FormatError(path, "token " + std::to_string(*bad) + " at position " + std::to_string(bad - tokens.begin()) +
                                  ", the vocabulary has " + std::to_string(*vocab_size) + " tokens");
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

std::vector<uint16_t> read_shards(std::span<const std::string> patterns, std::optional<int64_t> vocab_size) {
  std::vector<uint16_t> tokens;
  for (const std::string& path : expand_shard_patterns(patterns)) {
    MappedFile file(path);
    std::vector<uint16_t> part = parse_shard(file.bytes(), path, vocab_size);
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  return tokens;
}

void write_shard(const std::string& path, std::span<const uint16_t> tokens) {
  if (tokens.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max()))
    throw UsageError(path + ": " + std::to_string(tokens.size()) + " tokens, a shard holds at most " +
                     std::to_string(std::numeric_limits<int32_t>::max()));
  ByteVector bytes;
  bytes.reserve(kShardHeaderBytes + tokens.size_bytes());
  append_little_endian(bytes, kShardMagic);
  append_little_endian(bytes, kShardVersion);
  append_little_endian(bytes, static_cast<int32_t>(tokens.size()));
  bytes.resize(kShardHeaderBytes);
  for (uint16_t token : tokens) append_little_endian(bytes, token);
  write_file_atomically(path, Bytes(bytes));
}

}  // namespace thimble
