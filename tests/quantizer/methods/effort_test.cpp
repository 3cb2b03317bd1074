// effort_test.cpp: counts of sequences by effort stand for as many tokens at any length.
#include "quantizer/methods/effort.h"

#include <gtest/gtest.h>

namespace thimble::effort_test {
namespace {

TEST(Effort, LongSequencesAreFewer) {
  for (Effort effort : {Effort::kFast, Effort::kDefault, Effort::kBest}) {
    const EffortLevel named = level_of(effort), twice = level_at(effort, 2 * kEffortLength);
    EXPECT_EQ(level_at(effort, kEffortLength).calibration_sequences, named.calibration_sequences);
    EXPECT_EQ(level_at(effort, 7).distill_batch, named.distill_batch);  // of short ones there are no more
    EXPECT_EQ(2 * twice.calibration_sequences, named.calibration_sequences);
    EXPECT_EQ(2 * twice.distill_batch, named.distill_batch);
    EXPECT_EQ(2 * twice.learn_batch, named.learn_batch);
    EXPECT_EQ(twice.distill_steps, named.distill_steps);
    EXPECT_EQ(level_at(effort, 1 << 20).distill_batch, 1);
  }
  EXPECT_EQ(level_at(Effort::kDefault, 4096).cross_sequences, kAllSequences);
  EXPECT_EQ(level_at(Effort::kDefault, 4096).most_learned, level_of(Effort::kDefault).most_learned);
  EXPECT_EQ(level_at(Effort::kFast, 4096).cross_sequences, 8);
}

}  // namespace
}  // namespace thimble::effort_test
