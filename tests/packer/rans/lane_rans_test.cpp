// lane_rans_test.cpp: blocks of every size and number of lanes come back; damaged ones are refused.
#include "packer/rans/lane_encoder.h"

#include <gtest/gtest.h>

#include <random>

namespace thimble::lane_rans_test {
namespace {

constexpr uint32_t kMaxMagnitude = 1000;

struct Sample {
  std::vector<uint8_t> classes;
  std::vector<int32_t> codes;
};

// Codes of all classes, within the tables' reach and beyond.
Sample sample(size_t elements, uint32_t max_magnitude) {
  std::mt19937 random(7);
  Sample result;
  for (size_t e = 0; e < elements; ++e) {
    result.classes.push_back(static_cast<uint8_t>(random() % kScaleClasses));
    const bool is_largest = e % 100 == 50;
    auto magnitude = static_cast<int32_t>(is_largest ? max_magnitude - std::min<size_t>(max_magnitude, e / 100 % 2)
                                                     : random() % (std::min<uint32_t>(max_magnitude, 40) + 1));
    result.codes.push_back(random() % 2 == 0 ? magnitude : -magnitude);
  }
  return result;
}

// The block of the sample's codes, whose tables are table_of, and their escapes.
struct Encoded {
  std::vector<Escape> escapes;
  ByteVector block;

  Encoded(const ScaleTables& tables, std::span<const uint8_t> table_of, const Sample& sample, uint32_t lanes)
      : block(encode_block({tables, ClassRange()}, table_of, sample.codes, lanes, escapes)) {}
};

// What decoding `block` gives with these escapes.
std::vector<int32_t> decode(const ScaleTables& tables, const BlockContext& context, Bytes block,
                            std::span<const Escape> escapes, uint32_t lanes) {
  std::vector<int32_t> codes(context.classes.size());
  const ByteVector bits = write_escapes(escapes, 0);
  const std::string where = "test";
  EscapeReader reader(bits, 0, kMaxMagnitude, where);
  decode_block({tables, ClassRange()}, context, block, lanes, codes, reader, where);
  reader.finish();
  return codes;
}

TEST(LaneRansTest, EverySizeComesBack) {
  for (uint32_t max_magnitude : {0u, 1u, 15u, 127u, 1000u}) {
    const ScaleTables tables = make_scale_tables(0, max_magnitude);
    for (uint32_t lanes = 1; lanes <= kMaxLanes; lanes *= 2)
      for (size_t elements : {1, 2, 31, 32, 33, 1000, 5000}) {
        const Sample input = sample(elements, max_magnitude);
        const Encoded encoded(tables, input.classes, input, lanes);
        EXPECT_GE(encoded.block.size(), lanes * sizeof(uint32_t));
        EXPECT_EQ(decode(tables, {input.classes}, encoded.block, encoded.escapes, lanes), input.codes);
      }
  }
}

// The same codes with a trellis: the decoder finds each element's table from the elements above it, whatever the widths
// and lanes, as long as there are no more lanes than columns.
TEST(LaneRansTest, SetsFollowTheColumns) {
  const ScaleTables tables = make_scale_tables(0, 1000, 2);
  for (int bits : {2, 3, 8})
    for (uint64_t width : {1, 2, 5, 32, 33, 100})
      for (uint32_t lanes = 1; lanes <= std::min<uint64_t>(width, kMaxLanes); lanes *= 2) {
        const Sample input = sample(width * 40, 1000);
        const Trellis trellis(bits);
        std::vector<uint8_t> table_of = input.classes;
        std::vector<uint32_t> states(width);
        for (size_t e = 0; e < table_of.size(); ++e) {
          uint32_t& state = states[e % width];
          if (Trellis::set(state) == 1) table_of[e] = static_cast<uint8_t>(table_of[e] + kScaleClasses);
          state = trellis.next(state, input.codes[e]);
        }
        const Encoded encoded(tables, table_of, input, lanes);
        const BlockContext context{input.classes, trellis, width};
        EXPECT_EQ(decode(tables, context, encoded.block, encoded.escapes, lanes), input.codes)
            << bits << " bits, " << width << " columns, " << lanes << " lanes";
      }
}

// Long runs of one symbol: as likely as can be, and the rarest.
TEST(LaneRansTest, RunsComeBack) {
  for (int shape = 0; shape < kTableShapes; ++shape) {
    const ScaleTables tables = make_scale_tables(shape, 127);
    for (int scale_class : {0, 12, 36})
      for (int32_t code : {0, 1, -3, 127}) {
        Sample input{std::vector<uint8_t>(20000, static_cast<uint8_t>(scale_class)), std::vector<int32_t>(20000, code)};
        const Encoded encoded(tables, input.classes, input, 4);
        EXPECT_EQ(decode(tables, {input.classes}, encoded.block, encoded.escapes, 4), input.codes);
      }
  }
}

TEST(LaneRansTest, WordsAndStatesMustComeOut) {
  const ScaleTables tables = make_scale_tables(0, 15);
  const Sample input = sample(500, 15);
  const Encoded encoded(tables, input.classes, input, 8);
  const ByteVector& good = encoded.block;
  auto decode_damaged = [&](Bytes block) { decode(tables, {input.classes}, block, encoded.escapes, 8); };
  EXPECT_NO_THROW(decode_damaged(good));
  for (size_t kept = 0; kept < good.size(); ++kept)
    EXPECT_THROW(decode_damaged(Bytes(good).first(kept)), FormatError) << kept;
  ByteVector longer = good;
  longer.resize(good.size() + 2);
  EXPECT_THROW(decode_damaged(longer), FormatError);
  ByteVector low = good;
  for (size_t i = 0; i < 4; ++i) low[3 * 4 + i] = static_cast<std::byte>(i < 2 ? 0xff : 0);  // lane 3 at kLaneStart - 1
  EXPECT_THROW(decode_damaged(low), FormatError);
  size_t accepted = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    ByteVector damaged = good;
    damaged[i] ^= std::byte{0x10};
    try {
      decode_damaged(damaged);
      ++accepted;
    } catch (const FormatError&) {
    }
  }
  // Nearly all damage shows in the states at the end; the rest is for the container's checksum.
  EXPECT_LT(accepted, good.size() / 100);
}

}  // namespace
}  // namespace thimble::lane_rans_test
