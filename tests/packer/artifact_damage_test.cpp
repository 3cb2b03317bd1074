// artifact_damage_test.cpp: whatever is wrong with an artifact is a FormatError. Damage is caught by the checksums;
// hostile files, whose checksums are right, by the checks behind them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "packer/artifact.h"
#include "packer/container/artifact_reader.h"
#include "tests/packer/decode_error.h"
#include "tests/packer/reseal.h"
#include "tests/packer/sample_models.h"

namespace thimble::artifact_damage_test {
namespace {

using ::testing::HasSubstr;

ByteVector sample() { return encode(sample_model()); }

TEST(ArtifactDamageTest, EveryTruncationIsRejected) {
  const ByteVector artifact = sample();
  for (size_t kept = 0; kept < artifact.size(); ++kept) {
    ByteVector cut(artifact.begin(), artifact.begin() + static_cast<std::ptrdiff_t>(kept));
    EXPECT_NE(decode_error(cut), "") << kept;
    reseal(cut, Reseal::kChecksumsAndLength);
    EXPECT_NE(decode_error(cut), "") << kept << ", resealed";
  }
}

TEST(ArtifactDamageTest, EveryFlippedByteIsRejected) {
  const ByteVector artifact = sample();
  for (size_t i = 0; i < artifact.size(); ++i)
    for (int mask : {0x01, 0x80, 0xff}) {
      ByteVector damaged = artifact;
      damaged[i] ^= static_cast<std::byte>(mask);
      EXPECT_NE(decode_error(damaged), "") << "byte " << i << ", mask " << mask;
    }
}

// With the checksums made right again a flip may decode (to other codes); nothing but a FormatError may escape.
TEST(ArtifactDamageTest, EveryResealedFlipDecodesOrIsRejected) {
  for (const char* codec : {"none", "brotli", "zstd", "xz", "rans"}) {
    const ByteVector artifact = encode(sample_model(), encode_options_from(codec));
    for (size_t i = 0; i < artifact.size(); ++i)
      for (int bit = 0; bit < 8; ++bit) {
        ByteVector damaged = artifact;
        damaged[i] ^= static_cast<std::byte>(1 << bit);
        reseal(damaged);
        std::string error = decode_error(damaged);
        if (i >= kPrefixBytes) continue;
        bool repaired = i >= kFileChecksumOffset;  // resealing writes this field
        EXPECT_EQ(error.empty(), repaired) << codec << " byte " << i << ": " << error;
      }
  }
}

TEST(ArtifactDamageTest, TrailingBytesAreRejected) {
  ByteVector artifact = sample();
  artifact.push_back(std::byte{0});
  EXPECT_THAT(decode_error(artifact), HasSubstr("its prefix declares"));
  reseal(artifact, Reseal::kChecksumsAndLength);
  EXPECT_THAT(decode_error(artifact), HasSubstr("1 B after the last section"));
}

TEST(ArtifactDamageTest, EmptyAndForeignFilesAreRejected) {
  EXPECT_THAT(decode_error({}), HasSubstr("is empty, not a thimble artifact"));
  EXPECT_THAT(decode_error(ByteVector(100, std::byte{'x'})), HasSubstr("wrong magic"));
}

struct Tampering {
  const char* name;
  size_t offset;
  int bytes;  // width of the field
  uint64_t value;
  const char* error;  // part of the message
};

class TamperedFieldTest : public ::testing::TestWithParam<Tampering> {};

// One field is changed and every checksum made right again.
TEST_P(TamperedFieldTest, IsRejected) {
  const Tampering& tampering = GetParam();
  ByteVector artifact = encode(sample_model(), encode_options_from("none"));
  ASSERT_EQ(decode_error(artifact), "");
  if (tampering.bytes == 1) overwrite_little_endian(artifact, tampering.offset, static_cast<uint8_t>(tampering.value));
  if (tampering.bytes == 4) overwrite_little_endian(artifact, tampering.offset, static_cast<uint32_t>(tampering.value));
  if (tampering.bytes == 8) overwrite_little_endian(artifact, tampering.offset, tampering.value);
  reseal(artifact);
  EXPECT_THAT(decode_error(artifact), HasSubstr(tampering.error));
}

// The sample's sections: 0 header, 1 and 2 codes, 3 scales, 4 U8, 5 F16, 6 F32.
INSTANTIATE_TEST_SUITE_P(
    All, TamperedFieldTest,
    ::testing::Values(Tampering{"Magic", 0, 1, 0x88, "wrong magic"}, Tampering{"Version", 8, 4, 4, "format version 4"},
                      Tampering{"OtherVersion", 8, 4, 2, "its tensors imply 1"},
                      Tampering{"NoSections", 12, 4, 0, "0 sections declared"},
                      Tampering{"ManySections", 12, 4, UINT32_MAX, "4,294,967,295 sections declared"},
                      Tampering{"OneSectionLess", 12, 4, 6, "24 B after the last section"},
                      Tampering{"Length", 16, 8, 1 << 20, "its prefix declares 1048576 B"},
                      Tampering{"UnknownKind", entry_offset(1, 0), 1, 4, "section 1: kind 4 is unknown"},
                      Tampering{"OtherKind", entry_offset(1, 0), 1, 2, "the header calls for codes here"},
                      Tampering{"SecondHeader", entry_offset(1, 0), 1, 0, "the header must be section 0"},
                      Tampering{"NoHeader", entry_offset(0, 0), 1, 1, "the header must be section 0"},
                      Tampering{"UnknownCodec", entry_offset(2, 1), 1, 5, "section 2: codec 5 is unknown"},
                      Tampering{"CodecOfCodes", entry_offset(3, 1), 1, 4, "codec rans is only for codes in the plain"},
                      Tampering{"CodecOfHeader", entry_offset(0, 1), 1, 4, "codec rans is only for codes in the plain"},
                      Tampering{"OtherCodec", entry_offset(2, 1), 1, 1, "section 2 (codes): "},
                      Tampering{"UnknownLayout", entry_offset(2, 2), 1, 6, "section 2: layout 6 is unknown"},
                      Tampering{"HeaderLayout", entry_offset(0, 2), 1, 1, "layout columns does not fit"},
                      Tampering{"LayoutOfFloats", entry_offset(1, 2), 1, 5, "layout planes does not fit"},
                      Tampering{"LayoutOfCodes", entry_offset(5, 2), 1, 1, "layout columns does not fit"},
                      Tampering{"LayoutOfNarrowCodes", entry_offset(1, 2), 1, 3, "layout digits does not fit"},
                      Tampering{"LayoutOfAnotherSize", entry_offset(1, 2), 1, 0, "the header implies 35 B"},
                      Tampering{"Reserved", entry_offset(3, 3), 1, 1, "reserved byte 1"},
                      Tampering{"RawBytes", entry_offset(3, 4), 4, 20, "the header implies 18 B"},
                      Tampering{"HugeRawBytes", entry_offset(1, 4), 4, UINT32_MAX, "4294967295 B when decompressed"},
                      Tampering{"HugeHeader", entry_offset(0, 4), 4, kMaxHeaderBytes, "4194304 B declared"},
                      Tampering{"StoredBytes", entry_offset(6, 8), 4, 5, "section 6 needs 5 B, 4 B remain"},
                      Tampering{"HugeStoredBytes", entry_offset(6, 8), 4, UINT32_MAX, "section 6 needs 4294967295 B"},
                      Tampering{"FewerStoredBytes", entry_offset(6, 8), 4, 3, "1 B after the last section"}),
    [](const auto& test) { return test.param.name; });

// An artifact with this header text and these sections, all stored without compression.
ByteVector artifact_of(const std::string& header, const std::vector<PackedSection>& sections = {}) {
  std::vector<std::shared_ptr<const PackedSection>> packed;
  ContentShape shape{SectionKind::kHeader, 1, header.size()};
  packed.push_back(
      std::make_shared<PackedSection>(pack_section_as(shape, as_bytes_of(header), LayoutId::kPlain, CodecId::kNone)));
  for (const PackedSection& section : sections) packed.push_back(std::make_shared<PackedSection>(section));
  return write_container(1, packed);
}

std::string header_with(const std::string& tensors) {
  return R"({"banked":false,"config":{},"provenance":{},"tensors":)" + tensors + "}";
}

PackedSection plain_section(SectionKind kind, const std::vector<int>& values) {
  ByteVector content;
  for (int value : values) content.push_back(static_cast<std::byte>(value));
  return pack_section_as({kind, 1, content.size(), 1, kind == SectionKind::kCodes ? kMaxCode : 0}, content,
                         LayoutId::kPlain, CodecId::kNone);
}

TEST(HostileHeaderTest, EmptyTableIsAnEmptyModel) {
  EXPECT_EQ(decode_artifact(artifact_of(header_with("[]")), "test.thmb"), QuantizedModel());
}

struct HostileHeader {
  const char* tensors;
  const char* error;
};

TEST(HostileHeaderTest, BadTablesAreRejected) {
  const HostileHeader cases[] = {
      {R"({})", R"(,"tensors":[ expected at byte 43 of 57)"},
      {R"([1])", "[ expected at byte 55 of 58"},
      {R"([["a",[1]]])", ", expected at byte 63"},
      {R"([["a",[1],15,0]])", "] expected at byte 66"},
      {R"([[1,[1],15]])", "a tensor's name expected at byte 56"},
      {R"([["a",1,15]])", "[ expected at byte 60"},
      {R"([["a",[-1],15]])", "a dimension expected at byte 61"},
      {R"([["a",[1.5],15]])", ", expected at byte 62"},
      {R"([["a",["1"],15]])", "a dimension expected at byte 61"},
      {R"([["a",[9223372036854775808],15]])", "dimension 9223372036854775808, at most 2^63 - 1"},
      {R"([["a",[4294967296,4294967296,2],15]])", "overflows 64 bits"},
      {R"([["a",[9223372036854775807,0],15]])", "overflows 64 bits"},
      {R"([["a",[1,1,1,1,1,1,1,1,1],15]])", "9 dimensions, at most 8"},
      {R"([["a",[],15]])", "a scalar cannot have codes"},
      {R"([["a",[1],0]])", "max_code 0, 1 to 127 allowed"},
      {R"([["a",[1],128]])", "max_code 128, 1 to 127 allowed"},
      {R"([["a",[1],-1]])", "an encoding expected at byte 64"},
      {R"([["a",[1],null]])", "an encoding expected at byte 64"},
      {R"([["a",[1],"F12"]])", "F12"},
      {R"([["",[1],"F16"]])", "name of 0 B"},
      {R"([["a\nb",[1],"F16"]])", "control character"},
      {R"([["b",[0],"F16"],["a",[0],"F16"]])", "names must ascend"},
      {R"([["a",[0],"F16"],["a",[0],"F16"]])", "names must ascend"},
      {R"([["a",[1],"F16"]])", "1 section, the header implies 2"},
      {R"([["a",[1],15]])", "1 section, the header implies 3"},
      // 4 GiB of codes, 8 GiB of floats, and rows without columns: more than this file may hold.
      {R"([["a",[65536,65536],15]])", "at most"},
      {R"([["a",[2147483648],"F32"]])", "at most"},
      {R"([["a",[1099511627776,0],15]])", "at most"},
  };
  for (const HostileHeader& hostile : cases)
    EXPECT_THAT(decode_error(artifact_of(header_with(hostile.tensors))), HasSubstr(hostile.error)) << hostile.tensors;
}

TEST(HostileHeaderTest, NotCanonicalIsRejected) {
  const HostileHeader cases[] = {
      {R"({"banked":false,"config":{},"provenance":{},"tensors":[]} )", "canonical"},
      {R"({"config":{},"banked":false,"provenance":{},"tensors":[]})", "canonical"},
      {R"({"banked":false,"config":{"x":1e1},"provenance":{},"tensors":[]})", "canonical"},
      {R"({"banked":false,"config":{},"tensors":[]})", R"(,"provenance": expected)"},
      {R"({"banked":false,"config":{},"extra":1,"provenance":{},"tensors":[]})", R"(,"provenance": expected)"},
      {R"({"banked":0,"config":{},"provenance":{},"tensors":[]})", "true or false expected at byte 10"},
      {R"({"banked":false,"config":[],"provenance":{},"tensors":[]})",
       "the config, a JSON object, expected at byte 25"},
      {R"({"banked":false,"banked":false,"config":{},"provenance":{},"tensors":[]})", R"(,"config": expected)"},
      {"", "expected at byte 0 of 0"},
      {"{", "expected at byte 0 of 1"},
      {"[]", R"({"banked": expected)"},
  };
  for (const HostileHeader& hostile : cases)
    EXPECT_THAT(decode_error(artifact_of(hostile.tensors)), HasSubstr(hostile.error)) << hostile.tensors;
}

TEST(HostileContentTest, CodesAndScalesOutOfRangeAreRejected) {
  const std::string header = header_with(R"([["a",[2],15]])");
  auto decode = [&](const std::vector<int>& codes, const std::vector<int>& scales) {
    return decode_error(
        artifact_of(header, {plain_section(SectionKind::kCodes, codes), plain_section(SectionKind::kScales, scales)}));
  };
  const std::vector<int> ones = {0x00, 0x3c, 0x00, 0x3c};
  EXPECT_EQ(decode({-15, 15}, ones), "");
  EXPECT_THAT(decode({-16, 15}, ones), HasSubstr("code 0 is -16"));
  EXPECT_THAT(decode({-15, 16}, ones), HasSubstr("code 1 is 16"));
  EXPECT_THAT(decode({0, -128}, ones), HasSubstr("code 1 is -128"));
  EXPECT_THAT(decode({0, 0}, {0x00, 0x3c, 0x00, 0x00}), HasSubstr("row scale 1 is 0"));
  EXPECT_THAT(decode({0, 0}, {0x00, 0xbc, 0x00, 0x3c}), HasSubstr("row scale 0 is -1"));
  EXPECT_THAT(decode({0, 0}, {0x00, 0x7c, 0x00, 0x3c}), HasSubstr("row scale 0 is inf"));
  EXPECT_THAT(decode({0, 0}, {0x01, 0x7c, 0x00, 0x3c}), HasSubstr("row scale 0 is nan"));
  EXPECT_EQ(decode({0, 0}, {0x01, 0x00, 0xff, 0x7b}), "");  // the smallest and the largest
}

// A section that would decompress to far more than it declares stops at the declared size.
TEST(HostileContentTest, DecompressionBombsStopEarly) {
  const ByteVector zeros(kMaxSectionContentBytes, std::byte{0});
  for (CodecId codec : {CodecId::kBrotli, CodecId::kZstd, CodecId::kXz}) {
    PackedSection bomb = pack_section_as({SectionKind::kRaw, 1, zeros.size()}, zeros, LayoutId::kPlain, codec);
    bomb.entry.raw_bytes = 3;
    EXPECT_THAT(decode_error(artifact_of(header_with(R"([["a",[3],"U8"]])"), {bomb})),
                HasSubstr("more than the declared 3 B"));
  }
}

// The other way round: the declared size is not believed before the bytes are there.
TEST(HostileContentTest, DeclaredSizesMustBeReached) {
  for (CodecId codec : {CodecId::kBrotli, CodecId::kZstd, CodecId::kXz}) {
    PackedSection small = pack_section_as({SectionKind::kRaw, 1, 3}, as_bytes_of("abc"), LayoutId::kPlain, codec);
    small.entry.raw_bytes = static_cast<uint32_t>(kMaxSectionContentBytes);
    EXPECT_NE(decode_error(artifact_of(header_with(R"([["a",[4194304],"U8"]])"), {small})), "");
  }
}

TEST(BadModelTest, IsNotEncoded) {
  auto rejected = [](auto change) {
    QuantizedModel model = sample_model();
    change(model);
    EXPECT_THROW(encode(model, encode_options_from("none")), FormatError);
  };
  auto coded = [](QuantizedModel& model) -> RowScaledCodes& { return std::get<RowScaledCodes>(model.tensors[0].data); };
  rejected([](QuantizedModel& model) { model.config_json = "{ }"; });
  rejected([](QuantizedModel& model) { model.provenance_json = "[]"; });
  rejected([](QuantizedModel& model) { model.provenance_json = "{"; });
  rejected([](QuantizedModel& model) { std::swap(model.tensors[0], model.tensors[1]); });
  rejected([](QuantizedModel& model) { model.tensors[1].name = model.tensors[0].name; });
  rejected([](QuantizedModel& model) { model.tensors[0].name = "\xff"; });
  rejected([](QuantizedModel& model) { model.tensors[0].name = std::string(kMaxNameBytes + 1, 'A'); });
  rejected([](QuantizedModel& model) { model.tensors[0].shape = {}; });
  rejected([](QuantizedModel& model) { model.tensors[0].shape = {7, 5}; });
  rejected([](QuantizedModel& model) { model.tensors[0].shape = {-5, -7}; });
  rejected([](QuantizedModel& model) { std::get<RawTensor>(model.tensors[1].data).bytes.pop_back(); });
  rejected([&](QuantizedModel& model) { coded(model).codes[2] = 16; });
  rejected([&](QuantizedModel& model) { coded(model).max_code = 0; });
  rejected([&](QuantizedModel& model) { coded(model).max_code = 128; });
  rejected([&](QuantizedModel& model) { coded(model).codes.pop_back(); });
  rejected([&](QuantizedModel& model) { coded(model).row_scales.pop_back(); });
  rejected([&](QuantizedModel& model) { coded(model).row_scales[0] = 0; });
  rejected([&](QuantizedModel& model) { coded(model).row_scales[0] = 0x7c00; });
}

}  // namespace
}  // namespace thimble::artifact_damage_test
