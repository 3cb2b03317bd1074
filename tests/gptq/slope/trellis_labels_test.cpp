// trellis_labels_test.cpp: labels number all states, and follow a path of the trellis as trellis_labels.h says.
#include "gptq/slope/trellis_labels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <random>

namespace thimble::trellis_labels_test {
namespace {

template <int kBits>
void check_labels() {
  SCOPED_TRACE(kBits);
  using Labels = TrellisLabels<kBits, std::min(3, kBits)>;
  constexpr Labels labels;
  for (uint32_t state = 0; state < Labels::kStates; ++state) ASSERT_LT(labels.label(state), Labels::kStates);
  const Trellis trellis(kBits);
  std::mt19937 random(1);
  uint32_t state = 0, label = 0;
  for (int group = 0; group < 100; ++group) {
    const uint32_t before = label;
    uint32_t parities = 0;
    for (int row = 0; row < kBits; ++row) {
      EXPECT_EQ(Trellis::set(state), std::popcount(label & labels.sets[row]) % 2);
      const uint32_t parity = random() % 2;
      state = trellis.next(state, static_cast<int32_t>(parity));
      label ^= parity << Labels::bit(row);
      parities |= parity << Labels::bit(row);
    }
    EXPECT_EQ(before ^ label, parities);
    const uint32_t end = label;
    label = Labels::map(labels.after, end);
    EXPECT_EQ(Labels::map(labels.states, label), state);
    EXPECT_EQ(labels.label(state), label);
    EXPECT_EQ(Labels::map(labels.before, label), end);
  }
}

TEST(TrellisLabels, FollowPaths) {
  check_labels<2>();
  check_labels<3>();
  check_labels<4>();
  check_labels<5>();
  check_labels<6>();
  check_labels<7>();
  check_labels<8>();
}

}  // namespace
}  // namespace thimble::trellis_labels_test
