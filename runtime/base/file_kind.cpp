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

struct Magic {
  std::string_view bytes;
  FileKind kind;
};
// Numbers of llm.c are little-endian: 20240326 for its checkpoints, 20240520 and 20240801 for token shards.
constexpr std::array kMagics = {
    Magic{"\x89THMB\r\n\x1A"sv, FileKind::kArtifact},
    Magic{"PK\x03\x04"sv, FileKind::kZip},
    Magic{"PK\x05\x06"sv, FileKind::kZip},
    Magic{"\xC6\xD7\x34\x01"sv, FileKind::kLlmc},
    Magic{"\x88\xD8\x34\x01"sv, FileKind::kTokenShard},
    Magic{"\xA1\xD9\x34\x01"sv, FileKind::kTokenShard},
    Magic{"GGUF"sv, FileKind::kGguf},
    Magic{"version https://git-lfs.github.com/spec/"sv, FileKind::kLfsPointer},
    Magic{"\x1F\x8B\x08"sv, FileKind::kGzip},
    Magic{"\xFD"
          "7zXZ\0"sv,
          FileKind::kXz},
    Magic{"\x28\xB5\x2F\xFD"sv, FileKind::kZstd},
    Magic{"BZh"sv, FileKind::kBzip2},
    Magic{"\x93NUMPY"sv, FileKind::kNumpy},
    Magic{"\x89HDF\r\n"sv, FileKind::kHdf5},
    Magic{"%PDF-"sv, FileKind::kPdf},
};

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
  std::string start(text.substr(0, 16));
  std::ranges::transform(start, start.begin(), [](unsigned char c) { return std::tolower(c); });
  return start.starts_with("<!doctype html") || start.starts_with("<html");
}

FileKind json_kind(std::string_view text) {
  auto has = [&](std::string_view key) { return text.find(key) != std::string_view::npos; };
  if (has("\"weight_map\"")) return FileKind::kCheckpointIndex;
  if (has("\"model_type\"") || has("\"architecture\"")) return FileKind::kModelConfig;
  if (has("\"added_tokens\"") || has("\"truncation\"")) return FileKind::kTokenizerJson;
  return FileKind::kJson;
}

// A JSON object begins with a key or ends at once.
bool is_json(std::string_view text) {
  if (!text.starts_with('{')) return false;
  const std::string_view rest = without_leading_space(text.substr(1));
  return rest.starts_with('"') || rest.starts_with('}');
}

constexpr std::string_view kToQuantize = "`thimble quantize` makes an artifact of a checkpoint";
constexpr std::string_view kDecompress = "decompress it first";

// In the order of FileKind: its name, and what to do about it, always or only where `advised` was asked for.
struct KindText {
  std::string_view name, advice = {};
  std::optional<FileUse> advised = {};
};
constexpr KindText kKinds[] = {
    {""},
    {"empty"},
    {"a thimble artifact", "`thimble export` writes its weights as a checkpoint", FileUse::kCheckpoint},
    {"a safetensors file", kToQuantize, FileUse::kArtifact},
    {"a zip archive", kToQuantize, FileUse::kArtifact},
    {"a bare pickle"},
    {"a checkpoint of llm.c", kToQuantize, FileUse::kArtifact},
    {"a token shard", "to score several, repeat --tokens or put a glob pattern in quotes"},
    {"a SentencePiece model", "it belongs to --tokenizer"},
    {"a GGUF file of llama.cpp", "give the checkpoint that it was made from"},
    {"a Git LFS pointer", "the file itself was not downloaded, `git lfs pull` does it"},
    {"an HTML page", "what was downloaded is a web page about the file"},
    {"the index of a checkpoint in several files",
     "only whole checkpoints are read, so save the model again as one file"},
    {"a tokenizer.json", "the tokenizer that is read is SentencePiece's .model"},
    {"a model config in JSON", "it belongs to --config"},
    {"a JSON text"},
    {"a gzip file", kDecompress},
    {"an xz file", kDecompress},
    {"a zstd file", kDecompress},
    {"a bzip2 file", kDecompress},
    {"a NumPy array"},
    {"an HDF5 file"},
    {"a PDF document"},
};
static_assert(std::size(kKinds) == static_cast<size_t>(FileKind::kPdf) + 1);

// In the order of FileUse: its name, and the kinds that it takes.
struct UseText {
  std::string_view name;
  std::array<std::optional<FileKind>, 4> takes;
};
constexpr UseText kUses[] = {
    {"a checkpoint (.safetensors, a zip file of torch.save, or .bin of llm.c)",
     {FileKind::kSafetensors, FileKind::kZip, FileKind::kPickle, FileKind::kLlmc}},
    {"a thimble artifact", {FileKind::kArtifact}},
    {"a token shard", {FileKind::kTokenShard}},
    {"a SentencePiece model", {FileKind::kSentencePiece}},
    {"a file of Hessians (.safetensors)", {FileKind::kSafetensors}},
    {"a model config in JSON", {FileKind::kModelConfig, FileKind::kJson}},
};
static_assert(std::size(kUses) == static_cast<size_t>(FileUse::kConfig) + 1);
const UseText& text_of(FileUse use) { return kUses[static_cast<size_t>(use)]; }

}  // namespace

FileKind file_kind(Bytes file) {
  if (file.empty()) return FileKind::kEmpty;
  const std::string_view text = as_text(file.first(std::min(file.size(), kFileKindBytes)));
  // First: the length of a header may have the bytes of a shorter magic.
  if (is_safetensors(text)) return FileKind::kSafetensors;
  for (const Magic& magic : kMagics)
    if (text.starts_with(magic.bytes)) return magic.kind;
  if (is_pickle(text)) return FileKind::kPickle;
  if (is_sentencepiece(text)) return FileKind::kSentencePiece;
  const std::string_view begun = without_leading_space(text);
  if (is_html(begun)) return FileKind::kHtml;
  if (is_json(begun)) return json_kind(begun);
  return FileKind::kUnknown;
}

std::string wrong_file_text(Bytes file, FileUse use) {
  const FileKind kind = file_kind(file);
  const std::string wanted(text_of(use).name);
  if (kind == FileKind::kUnknown) return "is not " + wanted;
  const KindText& found = kKinds[static_cast<size_t>(kind)];
  std::string text = "is " + std::string(found.name) + ", not " + wanted;
  if (!found.advice.empty() && found.advised.value_or(use) == use) text += ": " + std::string(found.advice);
  return text;
}

void refuse_other_kinds(Bytes file, FileUse use, const std::string& path) {
  const FileKind kind = file_kind(file);
  if (kind != FileKind::kUnknown && std::ranges::find(text_of(use).takes, kind) == text_of(use).takes.end())
    throw FormatError(path, wrong_file_text(file, use));
}

}  // namespace thimble
