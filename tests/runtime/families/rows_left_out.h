// rows_left_out.h: of two divergence passes, one that sums gradients by gains of rows and one that does not
// (DivergenceOptions), all other gradients are the same, bit for bit.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/ops/divergence_pass.h"

namespace thimble {

inline void expect_rows_left_out(DivergencePass& all, DivergencePass& some, const Gains& gains, int64_t sequences) {
  for (DivergencePass* pass : {&all, &some}) pass->set(gains);
  MatrixGradients expected, found;
  const GainGradients with_rows = all.gradients(0, sequences, &expected),
                      without = some.gradients(0, sequences, &found);
  EXPECT_FALSE(with_rows.rows.empty());
  EXPECT_TRUE(without.rows.empty());
  EXPECT_EQ(without.divergence, with_rows.divergence);
  EXPECT_EQ(without.head, with_rows.head);
  EXPECT_EQ(without.small, with_rows.small);
  for (const auto& [name, gradient] : expected)
    EXPECT_TRUE(std::ranges::equal(found.at(name).values(), gradient.values())) << name;
}

}  // namespace thimble
