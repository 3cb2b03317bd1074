// nvfp4_artifact_test.cpp: tensors in NVFP4 in an artifact: exact round trips in every codec and layout, the version,
// damage and hostile contents, models that break a rule, what the summary says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "packer/layout/stored_model.h"
#include "tests/packer/decode_error.h"
#include "tests/packer/reseal.h"
#include "tests/packer/sample_models.h"

namespace thimble::nvfp4_artifact_test {
namespace {

using ::testing::HasSubstr;

TEST(Nvfp4Artifact, RoundTripsInEveryCodec) {
  QuantizedModel model = mixed_model();
  for (auto [rows, columns] : {std::pair{0, 5}, {1, 1}, {1, 16}, {1, 17}, {130, 65}, {5, 0}, {7, 15}, {64, 128}})
    model.tensors.push_back(nvfp4_tensor("i" + std::to_string(rows) + " " + std::to_string(columns), rows, columns));
  std::ranges::sort(model.tensors, {}, &QuantizedTensor::name);
  for (const char* codec : {"none", "brotli", "zstd", "xz", "rans", "auto"}) {
    SCOPED_TRACE(codec);
    const EncodeOptions options = encode_options_from(codec);
    const ByteVector artifact = encode(model, options);
    const QuantizedModel decoded = decode_artifact(artifact, "test.thmb");
    EXPECT_EQ(decoded, model);
    EXPECT_EQ(encode(decoded, options), artifact);
    SilentProgress progress;
    EXPECT_TRUE(verify_artifact(artifact, "test.thmb", progress).identical);
  }
}

TEST(Nvfp4Artifact, RoundTripsInEveryLayout) {
  const QuantizedModel model = mixed_model();
  for (LayoutId layout :
       {LayoutId::kPlain, LayoutId::kColumns, LayoutId::kBits, LayoutId::kDigits, LayoutId::kDigitColumns})
    EXPECT_EQ(decode_artifact(encode_in(model, layout), "test.thmb"), model) << layout_name(layout);
}

TEST(Nvfp4Artifact, TwoCodesToAByteWithoutCompression) {
  QuantizedModel model;
  model.tensors = {nvfp4_tensor("a", 64, 128)};
  const OpenArtifact opened = open_artifact(encode(model, encode_options_from("none")), "test.thmb");
  ASSERT_EQ(opened.sections.size(), 3u);
  EXPECT_EQ(opened.plan.sections[1].shape.max_code, kMaxNvfp4Level);
  EXPECT_EQ(opened.plan.sections[2].shape.content_bytes(), 4u + 64 * 8);
}

TEST(Nvfp4Artifact, CodesOfSeveralSections) {
  QuantizedModel model;
  model.tensors = {nvfp4_tensor("long", 3001, 1501), nvfp4_tensor("m", 4, 9), nvfp4_tensor("wide", 1, (4 << 20) + 33)};
  const ByteVector artifact = encode(model, encode_options_from("none"));
  EXPECT_EQ(open_artifact(artifact, "test.thmb").sections.size(), 1u + 2 + 1 + 2 + 1);
  EXPECT_EQ(decode_artifact(artifact, "test.thmb"), model);
}

// Within the tensor scale too.
TEST(Nvfp4Artifact, ScalesMayBeCutAnywhere) {
  QuantizedModel model;
  model.tensors = {nvfp4_tensor("a", 3, 33)};
  ArtifactPlan plan = plan_artifact(model, "test");
  const uint64_t bytes = plan.header.tensors[0].scale_bytes();
  ASSERT_EQ(bytes, 4u + 3 * 3);
  for (uint64_t cut = 1; cut < bytes; ++cut) {
    QuantizedModel back = empty_model(plan.header);
    for (auto [first, last] : {std::pair<uint64_t, uint64_t>{0, cut}, {cut, bytes}}) {
      plan.sections[2] = {{SectionKind::kScales, 1, last - first, 1, 0}, {{0, first, last - first}}};
      scatter_content(back, plan.sections[2], gather_content(model, plan, 2));
    }
    auto& found = std::get<Nvfp4Codes>(back.tensors[0].data);
    const auto& expected = std::get<Nvfp4Codes>(model.tensors[0].data);
    EXPECT_EQ(found.block_scales, expected.block_scales) << cut;
    EXPECT_EQ(found.tensor_scale, expected.tensor_scale) << cut;
  }
}

TEST(Nvfp4Artifact, HasVersion3) {
  EXPECT_EQ(open_artifact(encode(mixed_model()), "test.thmb").version, 3u);
  ByteVector older = encode(mixed_model());
  overwrite_little_endian(older, kVersionOffset, uint32_t{2});
  reseal(older);
  EXPECT_THAT(decode_error(older), HasSubstr("its tensors imply 3"));
}

TEST(Nvfp4Artifact, IsDescribed) {
  const ArtifactSummary summary = describe_artifact(encode(mixed_model()), "test.thmb");
  EXPECT_EQ(std::ranges::find(summary.tensors, "f.weight", &StoredTensorSummary::name)->precision, "nvfp4");
}

TEST(Nvfp4Artifact, EveryTruncationAndFlippedByteIsRejected) {
  const ByteVector artifact = encode(mixed_model());
  for (size_t i = 0; i < artifact.size(); ++i) {
    ByteVector damaged = artifact;
    damaged[i] ^= std::byte{0x41};
    EXPECT_NE(decode_error(damaged), "") << i;
    ByteVector cut(artifact.begin(), artifact.begin() + static_cast<std::ptrdiff_t>(i));
    reseal(cut, Reseal::kChecksumsAndLength);
    EXPECT_NE(decode_error(cut), "") << i;
  }
}

// Nothing but a FormatError may escape, and what decodes encodes to the same again.
TEST(Nvfp4Artifact, EveryResealedFlipDecodesOrIsRejected) {
  const EncodeOptions quick = encode_options_from("none");
  for (const char* codec : {"none", "rans"}) {
    const ByteVector artifact = encode(mixed_model(), encode_options_from(codec));
    int decoded = 0, refused = 0;
    for (size_t i = 0; i < artifact.size(); ++i)
      for (int bit : {0, 3, 7}) {
        ByteVector damaged = artifact;
        damaged[i] ^= static_cast<std::byte>(1 << bit);
        reseal(damaged);
        try {
          const QuantizedModel model = decode_artifact(damaged, "test.thmb");
          EXPECT_EQ(decode_artifact(encode(model, quick), "test.thmb"), model);
          ++decoded;
        } catch (const FormatError&) {
          ++refused;
        }
      }
    EXPECT_GT(decoded, 0);
    EXPECT_GT(refused, 0);
  }
}

// The message about a file of one tensor (1, 2) whose sections are these bytes.
std::string error_of(const std::vector<int>& codes, const std::vector<int>& scales) {
  auto section = [](SectionKind kind, const std::vector<int>& values) {
    ByteVector bytes;
    for (int value : values) bytes.push_back(static_cast<std::byte>(value));
    return std::make_shared<PackedSection>(
        pack_section_as({kind, 1, bytes.size(), 1, 0}, bytes, LayoutId::kPlain, CodecId::kNone));
  };
  const std::string text = R"({"banked":false,"config":{},"provenance":{},"tensors":[["a",[1,2],"NVFP4"]]})";
  std::vector<std::shared_ptr<const PackedSection>> sections = {
      std::make_shared<PackedSection>(
          pack_section_as({SectionKind::kHeader, 1, text.size()}, as_bytes_of(text), LayoutId::kPlain, CodecId::kNone)),
      section(SectionKind::kCodes, codes), section(SectionKind::kScales, scales)};
  return decode_error(write_container(3, sections));
}

TEST(Nvfp4Artifact, HostileContentsAreRejected) {
  const std::vector<int> one = {0, 0, 0x80, 0x3f, 0x38};
  EXPECT_EQ(error_of({7, -7}, one), "");
  EXPECT_THAT(error_of({8, 0}, one), HasSubstr("code 0 is 8, -7 to 7 allowed"));
  EXPECT_THAT(error_of({0, -128}, one), HasSubstr("code 1 is -128"));
  EXPECT_EQ(error_of({0, 0}, {0, 0, 0x80, 0x3f, 0x7e}), "");
  EXPECT_THAT(error_of({0, 0}, {0, 0, 0x80, 0x3f, 0x7f}), HasSubstr("block scale 0 has the code 127"));
  EXPECT_THAT(error_of({0, 0}, {0, 0, 0x80, 0x3f, 0xb8}), HasSubstr("block scale 0 has the code 184"));
  EXPECT_THAT(error_of({0, 0}, {0, 0, 0, 0, 0x38}), HasSubstr("the tensor scale is 0"));
  EXPECT_THAT(error_of({0, 0}, {0, 0, 0x80, 0xbf, 0x38}), HasSubstr("the tensor scale is -1"));
  EXPECT_THAT(error_of({0, 0}, {0, 0, 0x80, 0x7f, 0x38}), HasSubstr("the tensor scale is inf"));
  EXPECT_THAT(error_of({0, 0}, {0, 0, 0xc0, 0x7f, 0x38}), HasSubstr("the tensor scale is nan"));
  EXPECT_NE(error_of({0, 0}, {0, 0, 0x80, 0x3f}), "");
  EXPECT_NE(error_of({0}, one), "");
}

TEST(Nvfp4Artifact, ModelsThatBreakARuleAreNotEncoded) {
  auto rejected = [](auto change) {
    QuantizedModel model;
    model.tensors = {nvfp4_tensor("a", 3, 17)};
    change(std::get<Nvfp4Codes>(model.tensors[0].data));
    EXPECT_THROW(encode(model, encode_options_from("none")), FormatError);
  };
  rejected([](Nvfp4Codes& coded) { coded.codes.pop_back(); });
  rejected([](Nvfp4Codes& coded) { coded.codes.push_back(0); });
  rejected([](Nvfp4Codes& coded) { coded.codes[0] = 0x08; });
  rejected([](Nvfp4Codes& coded) { coded.codes[0] = 0x80; });
  rejected([](Nvfp4Codes& coded) { coded.codes[8] = 0x10; });  // behind the row
  rejected([](Nvfp4Codes& coded) { coded.block_scales.pop_back(); });
  rejected([](Nvfp4Codes& coded) { coded.block_scales[1] = kUe4m3Nan; });
  rejected([](Nvfp4Codes& coded) { coded.tensor_scale = 0; });
  rejected([](Nvfp4Codes& coded) { coded.tensor_scale = 0x1.000002p116f; });
  rejected([](Nvfp4Codes& coded) { coded.tensor_scale = std::numeric_limits<float>::quiet_NaN(); });
}

}  // namespace
}  // namespace thimble::nvfp4_artifact_test
