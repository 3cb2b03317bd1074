// divergence_sequences_test.cpp: of how many sequences a divergence pass keeps what the teacher's head reads.
#include <gtest/gtest.h>

#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/ops.h"

namespace thimble::divergence_sequences_test {
namespace {

Network network_of(int64_t width) {
  Ops ops({{"table", {3, width}, Role::kTable}});
  const Value x = ops.gather("table");
  return std::move(ops).head(x, "table");
}

TEST(KeptTeacherSequences, AreBoundedByTheMemoryOfTheHeadsInputs) {
  const DivergenceOptions options;
  for (size_t element_bytes : {2, 4}) {
    const auto bytes = static_cast<int64_t>(2048 * 1024 * element_bytes);
    EXPECT_EQ(options.kept_sequences(network_of(1024), 1 << 20, 2049, element_bytes), options.teacher_bytes / bytes);
    EXPECT_EQ(options.kept_sequences(network_of(1024), 5, 2049, element_bytes), 5);
    EXPECT_EQ(options.kept_sequences(network_of(1 << 16), 9, 1 << 20, element_bytes), 2);
  }
}

}  // namespace
}  // namespace thimble::divergence_sequences_test
