// file_kind_test.cpp: files are told apart by their first bytes, and messages say what a wrong one is.
#include "runtime/base/file_kind.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/runtime/base/error_matcher.h"

namespace thimble {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using std::string_literals::operator""s;

FileKind kind_of(const std::string& text) { return file_kind(as_bytes_of(text)); }

std::string text_of(const std::string& file, FileUse use) { return wrong_file_text(as_bytes_of(file), use); }

TEST(FileKind, IsToldByTheFirstBytes) {
  const std::vector<std::pair<std::string, FileKind>> files = {
      {"", FileKind::kEmpty},
      {"\x89THMB\r\n\x1A rest", FileKind::kArtifact},
      {"\x10\0\0\0\0\0\0\0{\"w\":{}}      "s, FileKind::kSafetensors},
      {"PK\x03\x04 rest", FileKind::kZip},
      {"\x80\x02}q", FileKind::kPickle},
      {"\xC6\xD7\x34\x01 rest", FileKind::kLlmc},
      {"\x88\xD8\x34\x01 rest", FileKind::kTokenShard},
      {"\n\x0E\n\x05<unk>\x15", FileKind::kSentencePiece},
      {"GGUF\x03", FileKind::kGguf},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n", FileKind::kLfsPointer},
      {"\n  <!DOCTYPE html><html>", FileKind::kHtml},
      {"<HTML>", FileKind::kHtml},
      {"{\"metadata\": {\"total_size\": 1}, \"weight_map\": {}}", FileKind::kCheckpointIndex},
      {"{\n  \"version\": \"1.0\", \"truncation\": null", FileKind::kTokenizerJson},
      {"{\"model_type\": \"gpt2\"}", FileKind::kModelConfig},
      {"{}", FileKind::kJson},
      {"\x1F\x8B\x08\0"s, FileKind::kGzip},
      {"\xFD"
       "7zXZ\0"s,
       FileKind::kXz},
      {"\x28\xB5\x2F\xFD", FileKind::kZstd},
      {"BZh9", FileKind::kBzip2},
      {"\x93NUMPY\x01", FileKind::kNumpy},
      {"\x89HDF\r\n\x1A\n", FileKind::kHdf5},
      {"%PDF-1.7", FileKind::kPdf},
      {"some text", FileKind::kUnknown},
      {"{not json", FileKind::kUnknown},
      {"\x80", FileKind::kUnknown},
      {"\n", FileKind::kUnknown},
      {std::string(8, '\xFF') + "{", FileKind::kUnknown},
  };
  for (const auto& [text, kind] : files) EXPECT_EQ(kind_of(text), kind) << text;
}

// Lengths whose bytes are how other files begin.
TEST(FileKind, ALengthIsNoMagic) {
  for (const std::string& length : {"\x80\x02\0"s, "\x1F\x8B\x08"s, "BZh"s, "\n\n\n"s, "{\"\0"s})
    EXPECT_EQ(kind_of(length + std::string(5, '\0') + "{\"w\":{}}"), FileKind::kSafetensors) << length;
}

TEST(FileKind, NothingBeyondTheFirstBytesIsRead) {
  const std::string far = "{\"a\":\"" + std::string(kFileKindBytes, 'x') + "\",\"weight_map\":{}}";
  EXPECT_EQ(kind_of(far), FileKind::kJson);
}

TEST(FileKind, AWrongFileIsNamedWithWhatToDo) {
  EXPECT_EQ(text_of("GGUF", FileUse::kArtifact),
            "is a GGUF file of llama.cpp, not a thimble artifact: give the checkpoint that it was made from");
  EXPECT_EQ(text_of("", FileUse::kTokenShard), "is empty, not a token shard");
  EXPECT_EQ(text_of("some text", FileUse::kTokenizer), "is not a SentencePiece model");
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
                            {"f: is a safetensors file, not a SentencePiece model"});
}

}  // namespace
}  // namespace thimble
