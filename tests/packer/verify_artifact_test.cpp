// verify_artifact_test.cpp: what verification reports of sound, foreign and damaged artifacts.
#include "packer/artifact.h"

#include <brotli/encode.h>
#include <gtest/gtest.h>

#include "packer/container/artifact_reader.h"
#include "tests/packer/reseal.h"
#include "tests/packer/sample_models.h"

namespace thimble::verify_artifact_test {
namespace {

VerifyReport verify(const ByteVector& file) {
  SilentProgress progress;
  return verify_artifact(file, "test.thmb", progress);
}

// The file with section `index` replaced by other stored bytes.
ByteVector with_section(const ByteVector& file, size_t index, const ByteVector& stored) {
  std::vector<std::shared_ptr<const PackedSection>> packed;
  for (const StoredSection& section : read_container(file, "test.thmb").sections)
    packed.push_back(
        std::make_shared<PackedSection>(PackedSection{section.entry, {section.stored.begin(), section.stored.end()}}));
  PackedSection replaced = *packed[index];
  replaced.stored = stored;
  replaced.entry.stored_bytes = static_cast<uint32_t>(stored.size());
  replaced.entry.checksum = xxh3(stored);
  packed[index] = std::make_shared<PackedSection>(replaced);
  return write_container(1, packed);
}

TEST(VerifyArtifactTest, SoundArtifactsAreIdentical) {
  for (const char* codec : {"none", "brotli", "zstd", "xz", "rans", "auto"}) {
    VerifyReport report = verify(encode(sample_model(), encode_options_from(codec)));
    EXPECT_TRUE(report.ok()) << report.problem;
    EXPECT_TRUE(report.identical);
    EXPECT_EQ(report.problem, "");
    EXPECT_TRUE(report.recompressed_differently.empty());
  }
}

// Another layout than the packer would choose is still canonical: the file says which one it is.
TEST(VerifyArtifactTest, RecordedLayoutsAreKept) {
  QuantizedModel model;
  model.tensors = {random_tensor("w", 9, 8, 3)};
  ByteVector artifact = encode(model);
  OpenArtifact open = open_artifact(artifact, "test.thmb");
  const ContentShape shape = open.plan.sections[1].shape;
  for (LayoutId layout : allowed_layouts(shape)) {
    PackedSection packed = pack_section_as(
        shape, std::as_bytes(std::span(std::get<RowScaledCodes>(model.tensors[0].data).codes)), layout, CodecId::kZstd);
    std::vector<std::shared_ptr<const PackedSection>> sections;
    for (const StoredSection& section : read_container(artifact, "test.thmb").sections)
      sections.push_back(std::make_shared<PackedSection>(
          PackedSection{section.entry, {section.stored.begin(), section.stored.end()}}));
    sections[1] = std::make_shared<PackedSection>(packed);
    ByteVector file = write_container(1, sections);
    EXPECT_EQ(decode_artifact(file, "test.thmb"), model);
    EXPECT_TRUE(verify(file).identical) << layout_name(layout);
  }
}

TEST(VerifyArtifactTest, AnotherCompressorIsNoFault) {
  QuantizedModel model;
  model.tensors = {coded_tensor("w", 60, 60, 15, [n = 0]() mutable { return n++ % 5; })};
  ByteVector artifact = encode(model);
  std::vector<StoredSection> sections = read_container(artifact, "test.thmb").sections;
  ASSERT_EQ(sections[1].entry.codec, CodecId::kBrotli);
  ByteVector raw = decompress_section(sections[1], {SectionKind::kCodes, 60, 60, 1, 15}, "test.thmb");
  ByteVector weaker(BrotliEncoderMaxCompressedSize(raw.size()));
  size_t weaker_bytes = weaker.size();
  ASSERT_TRUE(BrotliEncoderCompress(1, 18, BROTLI_MODE_GENERIC, raw.size(), reinterpret_cast<uint8_t*>(raw.data()),
                                    &weaker_bytes, reinterpret_cast<uint8_t*>(weaker.data())));
  weaker.resize(weaker_bytes);
  VerifyReport report = verify(with_section(artifact, 1, weaker));
  EXPECT_TRUE(report.ok()) << report.problem;
  EXPECT_FALSE(report.identical);
  EXPECT_EQ(report.recompressed_differently, std::vector<size_t>{1});
}

TEST(VerifyArtifactTest, DamageIsReported) {
  ByteVector artifact = encode(sample_model());
  artifact.back() ^= std::byte{1};
  VerifyReport report = verify(artifact);
  EXPECT_FALSE(report.container_ok);
  EXPECT_FALSE(report.ok());
  EXPECT_NE(report.problem.find("checksum"), std::string::npos);
}

TEST(VerifyArtifactTest, RightChecksumsDoNotHideBadContents) {
  ByteVector artifact = encode(sample_model(), encode_options_from("none"));
  overwrite_little_endian(artifact, entry_offset(1, 2), uint8_t{5});
  reseal(artifact);
  VerifyReport report = verify(artifact);
  EXPECT_TRUE(report.container_ok);
  EXPECT_FALSE(report.decodes);
  EXPECT_FALSE(report.ok());
  EXPECT_NE(report.problem, "");
}

}  // namespace
}  // namespace thimble::verify_artifact_test
