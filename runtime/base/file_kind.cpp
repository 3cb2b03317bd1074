// file_kind.cpp: first bytes and names for file_kind.h.
#include "runtime/base/file_kind.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>

#include "runtime/base/error.h"

namespace thimble {
namespace {

using std::string_view_literals::operator""sv;

constexpr size_t kSafetensorsPrefixBytes = 8;
constexpr uint64_t kMostSafetensorsHeaderBytes = 16'000'000;  // as the reader has it

uint8_t byte_at(std::string_view text, size_t i) { return static_cast<uint8_t>(text[i]); }

// u64 length of a JSON object, and its first byte.
bool is_safetensors(std::string_view text) {
  if (text.size() <= kSafetensorsPrefixBytes || text[kSafetensorsPrefixBytes] != '{') return false;
  uint64_t length = 0;
  for (size_t i = kSafetensorsPrefixBytes; i-- > 0;) length = length << 8 | byte_at(text, i);
  return length <= kMostSafetensorsHeaderBytes;
}

// Field 1 of the message, a piece; its field 1, the piece's text, fits in it.
bool is_sentencepiece(std::string_view text) {
  constexpr uint8_t kFieldOne = 0x0A, kShort = 0x80;
  return text.size() > 4 && byte_at(text, 0) == kFieldOne && byte_at(text, 2) == kFieldOne &&
         byte_at(text, 1) < kShort && byte_at(text, 3) > 0 && byte_at(text, 3) + 2 <= byte_at(text, 1);
}

bool is_pickle(std::string_view text) {
  constexpr uint8_t kProtocol = 0x80;
  return text.size() > 2 && byte_at(text, 0) == kProtocol && byte_at(text, 1) >= 2 && byte_at(text, 1) <= 5;
}

std::string_view without_leading_space(std::string_view text) {
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text[0])) != 0) text.remove_prefix(1);
  return text;
}

bool is_html(std::string_view text) {
  std::string start(without_leading_space(text).substr(0, 16));
  std::ranges::transform(start, start.begin(), [](unsigned char c) { return std::tolower(c); });
  return start.starts_with("<!doctype html") || start.starts_with("<html");
}

// A JSON object begins with a key or ends at once.
bool is_json(std::string_view text) {
  text = without_leading_space(text);
  if (!text.starts_with('{')) return false;
  const std::string_view rest = without_leading_space(text.substr(1));
  return rest.starts_with('"') || rest.starts_with('}');
}

bool is_json_with(std::string_view text, std::initializer_list<std::string_view> keys) {
  auto has = [&](std::string_view key) { return text.find(key) != std::string_view::npos; };
  return is_json(text) && std::ranges::any_of(keys, has);
}
bool is_index(std::string_view text) { return is_json_with(text, {"\"weight_map\""}); }
bool is_model_config(std::string_view text) { return is_json_with(text, {"\"model_type\"", "\"architecture\""}); }
bool is_tokenizer_json(std::string_view text) { return is_json_with(text, {"\"added_tokens\"", "\"truncation\""}); }

// What to do about a file, whatever it was to be or only where it was to be `use`.
struct Advice {
  std::string_view text = {};
  std::optional<FileUse> use = {};
};
constexpr Advice kToQuantize{"`thimble quantize` makes an artifact of a checkpoint", FileUse::kArtifact};
constexpr Advice kToExport{"`thimble export` writes its weights as a checkpoint", FileUse::kCheckpoint};
constexpr Advice kToScoreSeveral{"to score several, repeat --tokens or put a glob pattern in quotes"};
constexpr Advice kToPull{"the file itself was not downloaded, `git lfs pull` does it"};
constexpr Advice kDecompress{"decompress it first"};

// A kind of file: how it begins, by bytes or by a test of the text, which uses take it, and advice for all others.
struct Kind {
  std::string_view name;
  std::array<std::string_view, 2> magics = {};
  bool (*test)(std::string_view) = nullptr;
  std::array<std::optional<FileUse>, 3> taken_for = {};
  Advice advice = {};

  bool matches(std::string_view text) const {
    if (test) return test(text);
    return std::ranges::any_of(magics, [&](auto magic) { return !magic.empty() && text.starts_with(magic); });
  }
};

// The first that matches. Safetensors before all magics: the length of a header may have the bytes of a shorter one.
// Numbers of llm.c are little-endian: 20240326 for its checkpoints, 20240520 and 20240801 for token shards.
constexpr Kind kKinds[] = {
    {"empty", {}, [](std::string_view text) { return text.empty(); }},
    {"a safetensors file",
     {},
     is_safetensors,
     {FileUse::kCheckpoint, FileUse::kShard, FileUse::kHessians},
     kToQuantize},
    {"a thimble artifact", {"\x89THMB\r\n\x1A"sv}, nullptr, {FileUse::kArtifact}, kToExport},
    // Also what torch.save writes.
    {"a zip archive", {"PK\x03\x04"sv, "PK\x05\x06"sv}, nullptr, {FileUse::kCheckpoint}, kToQuantize},
    {"a checkpoint of llm.c", {"\xC6\xD7\x34\x01"sv}, nullptr, {FileUse::kCheckpoint}, kToQuantize},
    {"a token shard", {"\x88\xD8\x34\x01"sv, "\xA1\xD9\x34\x01"sv}, nullptr, {FileUse::kTokenShard}, kToScoreSeveral},
    {"a GGUF file of llama.cpp", {"GGUF"sv}, nullptr, {FileUse::kCheckpoint}, kToQuantize},
    {"a Git LFS pointer", {"version https://git-lfs.github.com/spec/"sv}, nullptr, {}, kToPull},
    {"a gzip file", {"\x1F\x8B\x08"sv}, nullptr, {}, kDecompress},
    {"an xz file", {"\xFD\x37zXZ\0"sv}, nullptr, {}, kDecompress},
    {"a zstd file", {"\x28\xB5\x2F\xFD"sv}, nullptr, {}, kDecompress},
    {"a bzip2 file", {"BZh"sv}, nullptr, {}, kDecompress},
    {"a NumPy array", {"\x93NUMPY"sv}},
    {"an HDF5 file", {"\x89HDF\r\n"sv}},
    {"a PDF document", {"%PDF-"sv}},
    {"a bare pickle", {}, is_pickle, {FileUse::kCheckpoint}},
    {"a SentencePiece model", {}, is_sentencepiece, {FileUse::kTokenizer}, {"it belongs to --tokenizer"}},
    {"an HTML page", {}, is_html, {}, {"what was downloaded is a web page about the file"}},
    {"the index of a checkpoint in several files", {}, is_index, {FileUse::kCheckpointIndex}, kToQuantize},
    {"a model config in JSON", {}, is_model_config, {FileUse::kConfig}, {"it belongs to --config"}},
    {"a tokenizer.json", {}, is_tokenizer_json, {FileUse::kTokenizer}, {"it belongs to --tokenizer"}},
    {"a JSON text", {}, is_json, {FileUse::kConfig, FileUse::kTokenizer}},
};

constexpr std::string_view kUseNames[] = {  // in the order of FileUse
    "a checkpoint (.safetensors, .gguf, a zip file of torch.save, or .bin of llm.c)",
    "the index of a checkpoint (model.safetensors.index.json)",
    "a shard of a checkpoint (.safetensors)",
    "a thimble artifact",
    "a token shard",
    "a SentencePiece model or a tokenizer.json",
    "a file of Hessians (.safetensors)",
    "a model config in JSON"};

// Null for a file of unknown kind.
const Kind* kind_of(Bytes file) {
  const std::string_view text = as_text(file.first(std::min(file.size(), kFileKindBytes)));
  const auto* found = std::ranges::find_if(kKinds, [&](const Kind& kind) { return kind.matches(text); });
  return found == std::end(kKinds) ? nullptr : found;
}

bool is_for(const Kind& kind, FileUse use) { return std::ranges::find(kind.taken_for, use) != kind.taken_for.end(); }

}  // namespace

bool is_kind_for(FileUse use, Bytes file) {
  const Kind* kind = kind_of(file);
  return kind && is_for(*kind, use);
}

std::string wrong_file_text(Bytes file, FileUse use) {
  const Kind* found = kind_of(file);
  const std::string wanted(kUseNames[static_cast<size_t>(use)]);
  if (!found) return "is not " + wanted;
  std::string text = "is " + std::string(found->name) + ", not " + wanted;
  const auto& [advice, advised] = found->advice;
  if (!advice.empty() && advised.value_or(use) == use) text += ": " + std::string(advice);
  return text;
}

void refuse_other_kinds(Bytes file, FileUse use, const std::string& path) {
  if (const Kind* kind = kind_of(file); kind && !is_for(*kind, use))
    throw FormatError(path, wrong_file_text(file, use));
}

}  // namespace thimble
