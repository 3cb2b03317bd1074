// random_test.cpp: Philox against the known answers of its authors, and the uniform numbers made of it.
#include "runtime/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace thimble::random_test {
namespace {

using Words = std::array<uint32_t, 4>;

// "philox4x32 10" in kat_vectors of Random123 (Salmon et al.); the key's first word is the low half.
TEST(Philox, MatchesKnownAnswers) {
  EXPECT_EQ(philox4x32(0, {0, 0, 0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32(~uint64_t{0}, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// Pins how seed, stream and index enter: a change would change every generated calibration set.
TEST(Uniform, TakesTheTop53BitsOfKnownAnswers) {
  EXPECT_EQ(uniform_at(0, 0, 0), static_cast<double>(0x6627e8d5e169c58du >> 11) / 9007199254740992.0);
  EXPECT_EQ(uniform_at(0x299f31d0a4093822, 0x0370734413198a2e, 0x85a308d3243f6a88),
            static_cast<double>(0xd16cfe0994fdccebu >> 11) / 9007199254740992.0);
}

TEST(Uniform, LiesInTheHalfOpenUnitInterval) {
  for (uint64_t i = 0; i < 100'000; ++i) {
    double value = uniform_at(1, 2, i);
    ASSERT_GE(value, 0.0);
    ASSERT_LT(value, 1.0);
  }
}

// Moments within five standard errors, and a chi-square statistic within five deviations of its mean.
TEST(Uniform, FillsTheIntervalEvenly) {
  constexpr int kDraws = 100'000, kBuckets = 100;
  double sum = 0, square_sum = 0;
  std::vector<int> buckets(kBuckets);
  for (int i = 0; i < kDraws; ++i) {
    double value = uniform_at(42, 0, static_cast<uint64_t>(i));
    sum += value;
    square_sum += value * value;
    ++buckets[static_cast<size_t>(value * kBuckets)];
  }
  EXPECT_NEAR(sum / kDraws, 1.0 / 2, 5 * std::sqrt(1.0 / 12 / kDraws));
  EXPECT_NEAR(square_sum / kDraws, 1.0 / 3, 5 * std::sqrt(4.0 / 45 / kDraws));
  double chi_square = 0, expected = double{kDraws} / kBuckets;
  for (int count : buckets) chi_square += (count - expected) * (count - expected) / expected;
  EXPECT_NEAR(chi_square, kBuckets - 1, 5 * std::sqrt(2.0 * (kBuckets - 1)));
}

// Neighbours in seed, stream and index, in their low and high halves, are different and uncorrelated draws.
TEST(Uniform, SeedStreamAndIndexAllMatter) {
  std::set<double> seen;
  constexpr uint64_t kHigh = uint64_t{1} << 32;
  for (uint64_t seed : {uint64_t{0}, uint64_t{1}, kHigh})
    for (uint64_t stream : {uint64_t{0}, uint64_t{1}, kHigh})
      for (uint64_t index : {uint64_t{0}, uint64_t{1}, kHigh}) seen.insert(uniform_at(seed, stream, index));
  EXPECT_EQ(seen.size(), 27u);

  constexpr int kDraws = 20'000;
  double across_streams = 0, across_indices = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    across_streams += (uniform_at(7, i, 0) - 0.5) * (uniform_at(7, i + 1, 0) - 0.5);
    across_indices += (uniform_at(7, 0, i) - 0.5) * (uniform_at(7, 0, i + 1) - 0.5);
  }
  double five_errors = 5.0 / 12 * std::sqrt(double{kDraws});
  EXPECT_LT(std::abs(across_streams), five_errors);
  EXPECT_LT(std::abs(across_indices), five_errors);
}

TEST(Uniform, ADrawDoesNotDependOnTheDrawsBeforeIt) {
  std::vector<double> forward, backward;
  for (uint64_t i = 0; i < 100; ++i) forward.push_back(uniform_at(3, 4, i));
  for (uint64_t i = 100; i-- > 0;) backward.insert(backward.begin(), uniform_at(3, 4, i));
  EXPECT_EQ(forward, backward);
}

}  // namespace
}  // namespace thimble::random_test
