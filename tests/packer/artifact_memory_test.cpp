// artifact_memory_test.cpp: a hostile file never makes the reader allocate what it merely declares.
#include <gtest/gtest.h>

#include "packer/artifact.h"
#include "packer/rans/weight_coder.h"
#include "runtime/base/hash.h"
#include "tests/packer/reseal.h"
#include "tests/packer/sample_models.h"
#include "tests/support/allocation_probe.h"

namespace thimble::artifact_memory_test {
namespace {

// The largest request while `file` is refused.
size_t largest_request_decoding(const ByteVector& file) {
  AllocationProbe probe;
  EXPECT_THROW(decode_artifact(file, "test.thmb"), FormatError);
  return probe.largest_bytes();
}

std::shared_ptr<const PackedSection> section_of(SectionKind kind, std::string_view content, CodecId codec,
                                                uint64_t declared_bytes) {
  PackedSection section = pack_section_as({kind, 1, content.size()}, as_bytes_of(content), LayoutId::kPlain, codec);
  section.entry.raw_bytes = static_cast<uint32_t>(declared_bytes);
  return std::make_shared<PackedSection>(std::move(section));
}

TEST(ArtifactMemoryTest, DeclaredSizesAreNotAllocated) {
  constexpr uint64_t kSections = 50;
  const std::string header = R"({"banked":false,"config":{},"provenance":{},"tensors":[["a",[)" +
                             std::to_string(kSections * kMaxSectionContentBytes) + R"(],"U8"]]})";
  for (CodecId codec : {CodecId::kNone, CodecId::kBrotli, CodecId::kZstd, CodecId::kXz}) {
    std::vector<std::shared_ptr<const PackedSection>> sections = {
        section_of(SectionKind::kHeader, header, CodecId::kNone, header.size())};
    for (uint64_t i = 0; i < kSections; ++i)
      sections.push_back(section_of(SectionKind::kRaw, "0123456789", codec, kMaxSectionContentBytes));
    EXPECT_LT(largest_request_decoding(write_container(1, sections)), size_t{1} << 20) << codec_name(codec);
  }
}

TEST(ArtifactMemoryTest, DeclaredHeaderIsNotAllocated) {
  for (CodecId codec : {CodecId::kNone, CodecId::kBrotli, CodecId::kZstd, CodecId::kXz}) {
    ByteVector file = write_container(1, {section_of(SectionKind::kHeader, "{}", codec, UINT32_MAX)});
    EXPECT_LT(largest_request_decoding(file), size_t{1} << 20) << codec_name(codec);
    file = write_container(1, {section_of(SectionKind::kHeader, "{}", codec, kMaxHeaderBytes)});
    EXPECT_LT(largest_request_decoding(file), size_t{1} << 20) << codec_name(codec);
  }
}

// Streams of the weight coder that say nothing wrong until their blocks' lengths do not add up.
TEST(ArtifactMemoryTest, DeclaredCodesAreNotAllocated) {
  const std::string header = R"({"banked":false,"config":{},"provenance":{},"tensors":[["a",[2048,2048],15]]})";
  ByteVector stored = encode_weights(std::vector<int32_t>(2048), 1, 2048, 0);
  PackedSection codes;
  codes.entry = {
      SectionKind::kCodes, CodecId::kRans, LayoutId::kPlain, 2048 * 2048, static_cast<uint32_t>(stored.size()),
      xxh3(stored)};
  codes.stored = stored;
  ByteVector file =
      write_container(1, {section_of(SectionKind::kHeader, header, CodecId::kNone, header.size()),
                          std::make_shared<PackedSection>(codes),
                          section_of(SectionKind::kScales, std::string(4096, '<'), CodecId::kNone, 4096)});
  EXPECT_LT(largest_request_decoding(file), size_t{1} << 20);
}

// 2^20 sections of nothing: the table does not fit in the file.
TEST(ArtifactMemoryTest, DeclaredSectionCountIsNotAllocated) {
  ByteVector file = encode(sample_model());
  file[kSectionCountOffset + 2] = std::byte{0x10};
  overwrite_little_endian(file, kFileChecksumOffset, file_checksum(file));
  EXPECT_LT(largest_request_decoding(file), size_t{1} << 16);
}

TEST(ArtifactMemoryTest, RequestsAreSeen) {
  AllocationProbe probe;
  encode(sample_model());
  EXPECT_GT(probe.largest_bytes(), 0u);
}

}  // namespace
}  // namespace thimble::artifact_memory_test
