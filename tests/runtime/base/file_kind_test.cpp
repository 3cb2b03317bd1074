// file_kind_test.cpp: files are told apart by their first bytes, and messages say what a wrong one is.
#include "runtime/base/file_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/base/error_matcher.h"

namespace thimble::file_kind_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using std::string_literals::operator""s;

// What messages call it.
std::string kind_of(const std::string& text) {
  const std::string message = wrong_file_text(as_bytes_of(text), FileUse::kHessians);
  return message.starts_with("is not ") ? "unknown" : message.substr(3, message.find(", not ") - 3);
}

std::string text_of(const std::string& file, FileUse use) { return wrong_file_text(as_bytes_of(file), use); }

TEST(FileKind, IsToldByTheFirstBytes) {
  const std::vector<std::pair<std::string, std::string>> files = {
      {"", "empty"},
      {"\x89THMB\r\n\x1A rest", "a thimble artifact"},
      {"\x10\0\0\0\0\0\0\0{\"w\":{}}      "s, "a safetensors file"},
      {"PK\x03\x04 rest", "a zip archive"},
      {"\x80\x02}q", "a bare pickle"},
      {"\xC6\xD7\x34\x01 rest", "a checkpoint of llm.c"},
      {"\x88\xD8\x34\x01 rest", "a token shard"},
      {"\n\x0E\n\x05<unk>\x15", "a SentencePiece model"},
      {"GGUF\x03", "a GGUF file of llama.cpp"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n", "a Git LFS pointer"},
      {"\n  <!DOCTYPE html><html>", "an HTML page"},
      {"<HTML>", "an HTML page"},
      {"{\"metadata\": {\"total_size\": 1}, \"weight_map\": {}}", "the index of a checkpoint in several files"},
      {"{\n  \"version\": \"1.0\", \"truncation\": null", "a tokenizer.json"},
      {"{\"model_type\": \"gpt2\"}", "a model config in JSON"},
      {"{}", "a JSON text"},
      {"\x1F\x8B\x08\0"s, "a gzip file"},
      {"\xFD"
       "7zXZ\0"s,
       "an xz file"},
      {"\x28\xB5\x2F\xFD", "a zstd file"},
      {"BZh9", "a bzip2 file"},
      {"\x93NUMPY\x01", "a NumPy array"},
      {"\x89HDF\r\n\x1A\n", "an HDF5 file"},
      {"%PDF-1.7", "a PDF document"},
      {"some text", "unknown"},
      {"{not json", "unknown"},
      {"\x80", "unknown"},
      {"\n", "unknown"},
      {std::string(8, '\xFF') + "{", "unknown"},
  };
  for (const auto& [text, kind] : files) EXPECT_EQ(kind_of(text), kind) << text;
}

// Lengths whose bytes are how other files begin.
TEST(FileKind, ALengthIsNoMagic) {
  for (const std::string& length : {"\x80\x02\0"s, "\x1F\x8B\x08"s, "BZh"s, "\n\n\n"s, "{\"\0"s})
    EXPECT_EQ(kind_of(length + std::string(5, '\0') + "{\"w\":{}}"), "a safetensors file") << length;
}

TEST(FileKind, NothingBeyondTheFirstBytesIsRead) {
  const std::string far = "{\"a\":\"" + std::string(kFileKindBytes, 'x') + "\",\"weight_map\":{}}";
  EXPECT_EQ(kind_of(far), "a JSON text");
}

TEST(FileKind, AWrongFileIsNamedWithWhatToDo) {
  EXPECT_EQ(
      text_of("GGUF", FileUse::kArtifact),
      "is a GGUF file of llama.cpp, not a thimble artifact: `thimble quantize` makes an artifact of a checkpoint");
  EXPECT_EQ(text_of("", FileUse::kTokenShard), "is empty, not a token shard");
  EXPECT_EQ(text_of("some text", FileUse::kTokenizer), "is not a SentencePiece model or a tokenizer.json");
  EXPECT_THAT(text_of("PK\x03\x04", FileUse::kArtifact), HasSubstr("`thimble quantize`"));
  EXPECT_THAT(text_of("PK\x03\x04", FileUse::kHessians), Not(HasSubstr("`thimble quantize`")));
  EXPECT_THAT(text_of("\x89THMB\r\n\x1A", FileUse::kCheckpoint), HasSubstr("`thimble export`"));
  EXPECT_THAT(text_of("\x1F\x8B\x08", FileUse::kCheckpoint), HasSubstr("is a gzip file, not a checkpoint"));
}

TEST(FileKind, FilesOfTheRightOrAnUnknownKindPass) {
  const std::string safetensors = "\x10\0\0\0\0\0\0\0{\"w\":{}}      "s;
  refuse_other_kinds(as_bytes_of(safetensors), FileUse::kCheckpoint, "f");
  refuse_other_kinds(as_bytes_of(safetensors), FileUse::kHessians, "f");
  refuse_other_kinds(as_bytes_of("unknown"), FileUse::kTokenShard, "f");
  refuse_other_kinds(as_bytes_of("{\"rope_base\": 1}"), FileUse::kConfig, "f");
  expect_error<FormatError>([&] { refuse_other_kinds(as_bytes_of(safetensors), FileUse::kTokenizer, "f"); },
                            {"f: is a safetensors file, not a SentencePiece model or a tokenizer.json"});
}

}  // namespace
}  // namespace thimble::file_kind_test
