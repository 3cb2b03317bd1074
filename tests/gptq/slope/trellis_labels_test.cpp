// trellis_labels_test.cpp: labels number all states, and follow a path of the trellis as trellis_labels.h says.
#include "gptq/slope/trellis_labels.h"

#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace thimble::trellis_labels_test {
namespace {

// A path of random codes. states: before each row, and after the last.
template <int kBits>
struct Path {
  explicit Path(size_t rows) {
    std::mt19937 random(1);
    for (size_t row = 0; row < rows; ++row) {
      parities.push_back(random() % 2);
      states.push_back(Trellis(kBits).next(states.back(), static_cast<int32_t>(parities.back())));
    }
  }

  std::vector<uint32_t> states = {kBits > 2 ? 5u : 1u}, parities;
};

template <int kBits, bool kFromLast>
void follow() {
  SCOPED_TRACE(kBits);
  using Labels = TrellisLabels<kBits, kFromLast>;
  constexpr Labels labels;
  std::set<int> bits;
  for (int row = 0; row < kBits; ++row) bits.insert(Labels::bit(row));
  EXPECT_EQ(bits.size(), size_t{kBits});
  EXPECT_TRUE(*bits.begin() == 0 && *bits.rbegin() == kBits - 1);
  for (int row = 0; row < Labels::kRows; ++row) EXPECT_TRUE(Labels::kRowBits >> Labels::bit(row) & 1);

  constexpr size_t kBlocks = 100, kRows = Labels::kRows;
  const Path<kBits> path(kBlocks * kRows);
  uint32_t label = Labels::map(labels.entering, kFromLast ? path.states.back() : path.states.front());
  for (size_t taken = 0; taken < kBlocks; ++taken) {
    const size_t first = (kFromLast ? kBlocks - 1 - taken : taken) * kRows;
    const uint32_t start = path.states[first], end = path.states[first + kRows];
    EXPECT_EQ(Labels::map(labels.entered, label), kFromLast ? end : start);
    EXPECT_EQ(Labels::map(labels.entering, kFromLast ? end : start), label);
    for (size_t i = 0; i < kRows; ++i) {
      const size_t r = first + (kFromLast ? kRows - 1 - i : i);
      EXPECT_EQ(Trellis::set(path.states[r]), std::popcount(label & labels.sets[i]) % 2);
      label ^= path.parities[r] << Labels::bit(static_cast<int>(i));
      EXPECT_EQ(Trellis::set(path.states[r]), std::popcount(label & labels.sets[i]) % 2);
    }
    EXPECT_EQ(Labels::map(labels.left, label), kFromLast ? start : end);
    EXPECT_EQ(Labels::map(labels.leaving, kFromLast ? start : end), label);
    label = Labels::map(labels.onward, label);
  }
}

template <int... kBits>
void follow_all(std::integer_sequence<int, kBits...>) {
  (follow<2 + kBits, false>(), ...);
  (follow<2 + kBits, true>(), ...);
}

TEST(TrellisLabels, FollowPaths) { follow_all(std::make_integer_sequence<int, 7>()); }

// Lanes of a warp that hold four labels each write one of these to 32 banks at the next group's start: with the states
// that are used by default, to as many banks as there are lanes.
template <bool kFromLast>
size_t banks_of_a_warp(uint32_t held) {
  constexpr TrellisLabels<8, kFromLast> labels;
  std::set<uint32_t> banks;
  for (uint32_t lane = 0; lane < 32; ++lane) banks.insert(labels.map(labels.onward, 4 * lane | held) % 32);
  return banks.size();
}

TEST(TrellisLabels, SpreadOverBanks) {
  for (uint32_t held = 0; held < 4; ++held) {
    EXPECT_EQ(banks_of_a_warp<false>(held), 32u);
    EXPECT_EQ(banks_of_a_warp<true>(held), 32u);
  }
}

}  // namespace
}  // namespace thimble::trellis_labels_test
