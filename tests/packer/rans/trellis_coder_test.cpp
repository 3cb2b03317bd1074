// trellis_coder_test.cpp: the weight coder with a trellis: decode(encode(q)) == q, on awkward and on likely codes; near
// the ideal length of codes whose sets are known; streams of another trellis and damaged ones refused; bytes that never
// change.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "packer/rans/scale_fit.h"
#include "packer/rans/weight_coder.h"
#include "runtime/base/hash.h"
#include "tests/packer/layout/sample_codes.h"
#include "tests/packer/rans/whole_stream.h"

namespace thimble::trellis_coder_test {
namespace {

void expect_round_trip(const SampleCodes& sample, int bits) {
  const ByteVector stream = encode_weights(sample.codes, sample.rows, sample.columns, bits);
  EXPECT_EQ(decode_all(stream, sample.rows, sample.columns, "test", bits), sample.codes);
  EXPECT_EQ(encode_weights(sample.codes, sample.rows, sample.columns, bits), stream);
}

TEST(TrellisCoderTest, ShapesComeBack) {
  for (auto [rows, columns] : {std::pair<uint64_t, uint64_t>{1, 1},
                               {1, 2},
                               {2, 1},
                               {1, 5000},
                               {1500, 1},
                               {3, 7},
                               {511, 31},
                               {512, 33},
                               {513, 70},
                               {600, 1025},
                               {1030, 40}})
    for (int bits = 2; bits <= kMaxTrellisBits; ++bits) {
      SCOPED_TRACE(::testing::Message() << rows << " x " << columns << ", " << bits << " bits");
      expect_round_trip(trellis_codes(rows, columns, 0.3 * bits, 0.5, 0.5, bits), bits);
    }
}

TEST(TrellisCoderTest, AwkwardCodesComeBack) {
  for (int bits : {2, 3, 8}) {
    SampleCodes sample{40, 50, std::vector<int32_t>(2000), {}};
    expect_round_trip(sample, bits);  // zeros: always in set 0
    for (int32_t same : {1, -1, 15, -127, 128, 1000, INT32_MAX - 1, 1 - INT32_MAX}) {
      SCOPED_TRACE(same);
      std::ranges::fill(sample.codes, same);
      expect_round_trip(sample, bits);
    }
    for (int32_t outlier : {3, 126, 127, 128, -129, 1000000, INT32_MAX - 1, 1 - INT32_MAX}) {
      SCOPED_TRACE(outlier);
      sample = trellis_codes(40, 50, 1, 0, 0, bits);
      sample.codes[777] = outlier;
      sample.codes[778] = outlier + (outlier > 0 ? -1 : 1);
      expect_round_trip(sample, bits);
    }
    std::mt19937 random(1);
    for (int32_t& code : sample.codes) code = static_cast<int32_t>(random() % 4001) - 2000;
    expect_round_trip(sample, bits);
    for (size_t i = 0; i < sample.codes.size(); ++i) sample.codes[i] = i % 50 < 25 ? 0 : 20;  // dead columns
    expect_round_trip(sample, bits);
  }
}

TEST(TrellisCoderTest, StreamsOfAnotherTrellisAreRefused) {
  for (int bits : {0, 2, 3, 4, 5, 6, 7, 8}) {
    const SampleCodes sample = trellis_codes(530, 33, 2, 0.5, 0.5, std::max(bits, 2));
    const ByteVector stream = encode_weights(sample.codes, 530, 33, bits);
    for (int other : {0, 2, 3, 4, 5, 6, 7, 8}) {
      if (other == bits)
        EXPECT_EQ(decode_all(stream, 530, 33, "test", other), sample.codes);
      else
        EXPECT_THROW(decode_all(stream, 530, 33, "test", other), FormatError);
    }
  }
}

// A code of INT32_MAX could, in set 1, be damaged to INT32_MIN.
TEST(TrellisCoderTest, MagnitudesLeaveRoomForTheSet) {
  ByteVector stream = encode_weights(trellis_codes(30, 5, 1, 1, 1, 3).codes, 30, 5, 3);
  for (size_t i = 7; i < 10; ++i) stream[i] = std::byte{0xff};
  stream[10] = std::byte{0x7f};
  EXPECT_THROW(decode_all(stream, 30, 5, "test", 3), FormatError);
}

// Ideal length of codes whose deviations and sets are known.
double ideal_bytes(const SampleCodes& sample, int bits) {
  const CodeLevels levels = code_levels(sample.codes, sample.rows, sample.columns, bits);
  double sum = 0;
  for (size_t i = 0; i < sample.codes.size(); ++i) {
    const double deviation = sample.deviations[i] * std::sqrt(2.0), level = levels.magnitudes[i] / 2.0;
    sum -= std::log2(0.5 * (std::erfc((level - 0.5) / deviation) - std::erfc((level + 0.5) / deviation)));
  }
  return sum / 8;
}

// Scales take 0.8 byte each here: 0.6%, 0.3% and 0.2% of the three.
TEST(TrellisCoderTest, NearTheIdealLengthOfKnownSets) {
  for (auto [scale, most] : {std::pair{0.4, 1.015}, {1.0, 1.01}, {3.0, 1.006}}) {
    const SampleCodes sample = trellis_codes(1024, 1024, scale, 0.7, 0.7, 3);
    const auto bytes = static_cast<double>(encode_weights(sample.codes, 1024, 1024, 3).size());
    EXPECT_LT(bytes, most * ideal_bytes(sample, 3)) << scale;
    EXPECT_LT(bytes, static_cast<double>(encode_weights(sample.codes, 1024, 1024, 0).size())) << scale;
  }
}

TEST(TrellisCoderTest, DamagedStreamsAreRefusedOrOfTheRightSize) {
  SampleCodes sample = trellis_codes(520, 3, 1, 1, 1, 3);
  sample.codes[5] = 300;
  const ByteVector stream = encode_weights(sample.codes, 520, 3, 3);
  for (size_t kept = 0; kept < stream.size(); ++kept)
    EXPECT_THROW(decode_all(Bytes(stream).first(kept), 520, 3, "test", 3), FormatError) << kept;
  ByteVector longer = stream;
  longer.push_back(std::byte{0});
  EXPECT_THROW(decode_all(longer, 520, 3, "test", 3), FormatError);
  EXPECT_THROW(decode_all(stream, 520, 4, "test", 3), FormatError);
  EXPECT_THROW(decode_all(stream, 519, 3, "test", 3), FormatError);
  EXPECT_THROW(decode_all(stream, 3, 520, "test", 3), FormatError);
  for (size_t i = 0; i < stream.size(); ++i)
    for (int bit = 0; bit < 8; ++bit) {
      ByteVector damaged = stream;
      damaged[i] ^= static_cast<std::byte>(1 << bit);
      try {
        EXPECT_EQ(decode_all(damaged, 520, 3, "test", 3).size(), sample.codes.size());
      } catch (const FormatError&) {
      }
    }
}

void expect_refused(const ByteVector& stream, uint64_t rows, uint64_t columns, int bits, const std::string& why) {
  try {
    decode_all(stream, rows, columns, "file: section 3", bits);
    ADD_FAILURE() << why;
  } catch (const FormatError& error) {
    EXPECT_EQ(std::string(error.what()), "file: section 3: " + why);
  }
}

TEST(TrellisCoderTest, FieldsThatDoNotSuitTheTrellisAreNamed) {
  const SampleCodes sample = trellis_codes(30, 5, 1, 1, 1, 3);
  ByteVector stream = encode_weights(sample.codes, 30, 5, 3);
  expect_refused(stream, 30, 5, 4, "codes of a trellis of 3 bits, 4 expected");
  expect_refused(stream, 30, 5, 0, "codes of a trellis of 3 bits, 0 expected");
  expect_refused(encode_weights(sample.codes, 30, 5, 0), 30, 5, 3, "codes of a trellis of 0 bits, 3 expected");
  ByteVector shape = stream;
  shape[0] = std::byte{0x34};
  expect_refused(shape, 30, 5, 3, "shape 4, 0 to 3 allowed");
  stream[2] = std::byte{3};
  expect_refused(stream, 30, 5, 3, "8 lanes, at most one for each of 5 columns allowed");
}

// Streams written once must be written, and read, for ever.
TEST(TrellisCoderTest, BytesAreThoseOfTheFormat) {
  std::vector<int32_t> codes;
  uint32_t state = 1;
  for (int i = 0; i < 600 * 1030; ++i) {
    state = state * 1664525 + 1013904223;  // a sum of uniform numbers, wider to the right
    codes.push_back((static_cast<int32_t>(state >> 28) + static_cast<int32_t>((state >> 20) & 15) - 15) *
                    (1 + i % 1030 / 100) / 4);
  }
  codes[123] = -70000;
  codes[600 * 1030 - 1] = 200;
  EXPECT_EQ(hex64(xxh3(encode_weights(codes, 600, 1030, 2))), "5f281df5ddd4db75");
  EXPECT_EQ(hex64(xxh3(encode_weights(codes, 600, 1030, 8))), "4f1d06fafa8bd005");
}

}  // namespace
}  // namespace thimble::trellis_coder_test
