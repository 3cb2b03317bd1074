// divergence_sequences_test.cpp: of how many sequences a divergence pass keeps the teacher's logits.
#include <gtest/gtest.h>

#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/ops.h"

namespace thimble {
namespace {

Network network_of(int64_t vocabulary) {
  Ops ops({{"table", {vocabulary, 4}, Role::kTable}});
  const Value x = ops.gather("table");
  return std::move(ops).head(x, "table");
}

TEST(DivergenceSequences, AreBoundedByTheMemoryOfLogits) {
  EXPECT_EQ(divergence_sequences(network_of(1024), 2049), kMostTeacherBytes / (2048 * 1024 * 4));
  EXPECT_EQ(divergence_sequences(network_of(1 << 16), 1 << 20), 2);
}

}  // namespace
}  // namespace thimble
