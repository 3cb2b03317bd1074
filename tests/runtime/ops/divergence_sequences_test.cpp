// divergence_sequences_test.cpp: of how many sequences a divergence pass keeps what the teacher's head reads.
#include <gtest/gtest.h>

#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/ops.h"

namespace thimble {
namespace {

Network network_of(int64_t width) {
  Ops ops({{"table", {3, width}, Role::kTable}});
  const Value x = ops.gather("table");
  return std::move(ops).head(x, "table");
}

TEST(DivergenceSequences, AreBoundedByTheMemoryOfTheHeadsInputs) {
  EXPECT_EQ(divergence_sequences(network_of(1024), 2049), kMostTeacherBytes / (2048 * 1024 * 4));
  EXPECT_EQ(divergence_sequences(network_of(1 << 16), 1 << 20), 2);
}

}  // namespace
}  // namespace thimble
