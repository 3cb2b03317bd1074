// weight_coder_test.cpp: decode(encode(q)) == q and encode(q) == encode(q), on awkward and on likely codes; near the
// ideal length; damaged streams refused; bytes that never change.
#include "packer/rans/weight_coder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "packer/rans/scale_fit.h"
#include "runtime/base/hash.h"
#include "tests/packer/layout/sample_codes.h"
#include "tests/packer/rans/whole_stream.h"

namespace thimble::weight_coder_test {
namespace {

void expect_round_trip(const SampleCodes& sample) {
  const ByteVector stream = encode_weights(sample.codes, sample.rows, sample.columns, 0);
  EXPECT_EQ(decode_all(stream, sample.rows, sample.columns, "test"), sample.codes);
  EXPECT_EQ(encode_weights(sample.codes, sample.rows, sample.columns, 0), stream);
}

TEST(WeightCoderTest, ShapesComeBack) {
  for (auto [rows, columns] : {std::pair<uint64_t, uint64_t>{1, 1},
                               {1, 2},
                               {2, 1},
                               {1, 5000},
                               {5000, 1},
                               {3, 7},
                               {100, 163},
                               {128, 128},
                               {128, 129},
                               {300, 400}})
    for (double scale : {0.05, 0.3, 1.0, 4.0, 40.0}) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", " << scale);
      expect_round_trip(normal_codes(rows, columns, scale, 0.5, 0.5));
    }
}

TEST(WeightCoderTest, AwkwardCodesComeBack) {
  SampleCodes sample{40, 50, std::vector<int32_t>(2000), {}};
  expect_round_trip(sample);  // zeros
  for (int32_t same : {1, -1, 15, -127, 128, 1000, INT32_MAX, -INT32_MAX}) {
    SCOPED_TRACE(same);
    std::ranges::fill(sample.codes, same);
    expect_round_trip(sample);
  }
  for (int32_t outlier : {3, 127, 128, -129, 1000000, INT32_MAX, -INT32_MAX}) {
    SCOPED_TRACE(outlier);
    sample = normal_codes(40, 50, 1, 0, 0);
    sample.codes[777] = outlier;
    expect_round_trip(sample);
  }
  std::mt19937 random(1);
  for (int32_t& code : sample.codes) code = static_cast<int32_t>(random() % 4001) - 2000;
  expect_round_trip(sample);
  for (size_t i = 0; i < sample.codes.size(); ++i) sample.codes[i] = i % 50 < 25 ? 0 : 20;  // dead columns
  expect_round_trip(sample);
}

TEST(WeightCoderTest, LargerMagnitudesThanAllowedAreRefused) {
  SampleCodes sample = normal_codes(4, 30, 3, 0, 0);
  sample.codes[7] = -128;
  const ByteVector stream = encode_weights(sample.codes, 4, 30, 0);
  EXPECT_EQ(decode_all(stream, 4, 30, "test", 0, 128), sample.codes);
  EXPECT_THROW(decode_all(stream, 4, 30, "test", 0, 127), FormatError);
}

// Several blocks, the last one short: 16384 codes for each of 32 lanes.
TEST(WeightCoderTest, LongMatricesHaveSeveralBlocks) { expect_round_trip(normal_codes(1030, 1024, 1.5, 0.3, 0.3)); }

// Ideal length of codes whose deviations are known: what no coder can beat by more than luck.
double ideal_bytes(const SampleCodes& sample) {
  double bits = 0;
  for (size_t i = 0; i < sample.codes.size(); ++i) {
    const double deviation = sample.deviations[i] * std::sqrt(2.0), q = std::abs(sample.codes[i]);
    bits -= std::log2(0.5 * (std::erfc((q - 0.5) / deviation) - std::erfc((q + 0.5) / deviation)));
  }
  return bits / 8;
}

// Scales take 0.8 byte each here: 0.6%, 0.3% and 0.2% of the three.
TEST(WeightCoderTest, NearTheIdealLengthWhereScalesVary) {
  for (auto [scale, most] : {std::pair{0.4, 1.015}, {1.0, 1.01}, {3.0, 1.006}}) {
    const SampleCodes sample = normal_codes(1024, 1024, scale, 0.7, 0.7);
    const ByteVector stream = encode_weights(sample.codes, 1024, 1024, 0);
    EXPECT_LT(static_cast<double>(stream.size()), most * ideal_bytes(sample)) << scale;
  }
}

// Laplace-distributed codes choose another shape, and gain by it.
TEST(WeightCoderTest, ShapeFollowsTheCodes) {
  std::mt19937 random(3);
  std::exponential_distribution<double> magnitude(0.5);
  std::vector<int32_t> codes(100000);
  for (int32_t& code : codes)
    code = static_cast<int32_t>(std::lround(magnitude(random) * (random() % 2 == 0 ? 1 : -1)));
  EXPECT_EQ(fit_scales(code_levels(codes, 100, 1000, 0), 100, 1000).shape, kTableShapes - 1);
  const SampleCodes normal = normal_codes(100, 1000, 2, 0, 0);
  EXPECT_EQ(fit_scales(code_levels(normal.codes, 100, 1000, 0), 100, 1000).shape, 0);
}

TEST(WeightCoderTest, DamagedStreamsAreRefusedOrOfTheRightSize) {
  SampleCodes sample = normal_codes(30, 41, 1, 1, 1);
  sample.codes[5] = 300;
  const ByteVector stream = encode_weights(sample.codes, 30, 41, 0);
  for (size_t kept = 0; kept < stream.size(); ++kept)
    EXPECT_THROW(decode_all(Bytes(stream).first(kept), 30, 41, "test"), FormatError) << kept;
  ByteVector longer = stream;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_all(longer, 30, 41, "test"), FormatError);
  EXPECT_THROW(decode_all(stream, 30, 42, "test"), FormatError);
  EXPECT_THROW(decode_all(stream, 31, 41, "test"), FormatError);
  for (size_t i = 0; i < stream.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      ByteVector damaged = stream;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      try {
        EXPECT_EQ(decode_all(damaged, 30, 41, "test").size(), sample.codes.size());
      } catch (const FormatError&) {
      }
    }
}

struct BadField {
  size_t offset;
  int value;
  const char* error;
};

TEST(WeightCoderTest, FieldsOutOfRangeAreNamed) {
  const SampleCodes sample = normal_codes(30, 41, 1, 1, 1);
  const ByteVector stream = encode_weights(sample.codes, 30, 41, 0);
  const BadField fields[] = {{0, 4, "shape 4, 0 to 3 allowed"},
                             {1, 32, "escape order 32, 0 to 31 allowed"},
                             {2, 6, "log2 of the lanes 6, 0 to 5 allowed"},
                             {3, 255, "center of the rows -1, 0 to 36 allowed"},
                             {4, 37, "spread of the rows 37, 0 to 36 allowed"},
                             {5, 100, "center of the columns 100, -36 to 36 allowed"},
                             {6, 40, "spread of the columns 40, 0 to 36 allowed"},
                             {10, 128, "largest magnitude 2147483"},
                             {14, 255, "a block needs"}};
  for (const BadField& field : fields) {
    ByteVector damaged = stream;
    damaged[field.offset] = static_cast<std::byte>(field.value);
    try {
      decode_all(damaged, 30, 41, "file: section 3");
      ADD_FAILURE() << field.error;
    } catch (const FormatError& error) {
      EXPECT_NE(std::string(error.what()).find(field.error), std::string::npos) << error.what();
      EXPECT_EQ(std::string(error.what()).rfind("file: section 3: ", 0), 0u) << error.what();
    }
  }
}

// Streams written once must be written, and read, for ever.
TEST(WeightCoderTest, BytesAreThoseOfTheFormat) {
  std::vector<int32_t> codes;
  uint32_t state = 1;
  for (int i = 0; i < 64 * 700; ++i) {
    state = state * 1664525 + 1013904223;  // a sum of uniform numbers, wider to the right
    codes.push_back((static_cast<int32_t>(state >> 28) + static_cast<int32_t>((state >> 20) & 15) - 15) *
                    (1 + i % 700 / 100) / 4);
  }
  codes[123] = -70000;
  EXPECT_EQ(hex64(xxh3(encode_weights(codes, 64, 700, 0))), "8a92b784961260a0");
}

}  // namespace
}  // namespace thimble::weight_coder_test
