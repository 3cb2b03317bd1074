// stage_times_test.cpp: the peak of a stage is its own where the system counts anew, and the process's is never lost.
#include "quantizer/console/stage_times.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace thimble::stage_times_test {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

// Resident until it returns; what it returns keeps the compiler from leaving it out.
int touch(uint64_t bytes) {
  auto memory = std::make_unique<char[]>(bytes);
  std::memset(memory.get(), 1, bytes);
  return memory[bytes / 2];
}

TEST(StageTimes, AStageHasItsOwnPeak) {
  StageTimes times;
  times.time("large", [] { return touch(256 * kMebibyte); });
  times.time("small", [] {});
  const uint64_t large = times.stages()[0].peak_bytes, small = times.stages()[1].peak_bytes;
  EXPECT_GE(large, 256 * kMebibyte);
  EXPECT_GE(times.peak_memory_bytes(), large) << "the process's stays";
  if (!times.has_stage_peaks()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
  EXPECT_LT(small + 128 * kMebibyte, large);
}

TEST(StageTimes, WhatAnInnerStageTookCountsForTheOuter) {
  StageTimes times;
  times.time("outer", [&] {
    times.time("inner", [] { return touch(256 * kMebibyte); });
    times.time("next", [] {});
  });
  ASSERT_EQ(times.stages().size(), 3);
  EXPECT_GE(times.stages()[2].peak_bytes, times.stages()[0].peak_bytes);
}

TEST(StageTimes, StagesOfOneNameAddUpAndKeepTheLargestPeak) {
  StageTimes times;
  EXPECT_EQ(times.time("first", [] { return touch(256 * kMebibyte); }), 1);
  times.time("second", [] {});
  times.time("first", [] {});
  ASSERT_EQ(times.stages().size(), 2);
  EXPECT_EQ(times.stages()[0].name, "first");
  EXPECT_GE(times.stages()[0].peak_bytes, 256 * kMebibyte);
  EXPECT_EQ(times.to_json().at("stage_peak_memory_bytes").at("first"), times.stages()[0].peak_bytes);
  EXPECT_EQ(times.to_json().at("seconds").size(), 2);
  EXPECT_THROW(times.time("third", [] { throw 1; }), int);
  EXPECT_EQ(times.stages()[2].name, "third");
  EXPECT_GE(times.peak_memory_bytes(), times.stages()[0].peak_bytes);
}

}  // namespace
}  // namespace thimble::stage_times_test
