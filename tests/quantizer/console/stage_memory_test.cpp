// stage_memory_test.cpp: the peak of a stage is its own where the system counts anew, and the process's is never lost.
#include "quantizer/console/stage_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "quantizer/console/console.h"

namespace thimble {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

// Resident until it returns; what it returns keeps the compiler from leaving it out.
int touch(uint64_t bytes) {
  auto memory = std::make_unique<char[]>(bytes);
  std::memset(memory.get(), 1, bytes);
  return memory[bytes / 2];
}

TEST(StageMemory, AStageHasItsOwnPeak) {
  StageMemory memory;
  memory.begin();
  touch(256 * kMebibyte);
  const uint64_t large = memory.end();
  memory.begin();
  const uint64_t small = memory.end();
  EXPECT_GE(large, 256 * kMebibyte);
  EXPECT_GE(memory.peak_bytes(), large) << "the process's stays";
  if (!memory.counts_anew()) GTEST_SKIP() << "/proc/self/clear_refs cannot be written here";
  EXPECT_LT(small + 128 * kMebibyte, large);
}

TEST(StageMemory, WhatAnInnerStageTookCountsForTheOuter) {
  StageMemory memory;
  memory.begin();
  memory.begin();
  touch(256 * kMebibyte);
  const uint64_t inner = memory.end();
  memory.begin();
  memory.end();
  EXPECT_GE(memory.end(), inner);
}

TEST(StageTimes, StagesOfOneNameAddUpAndKeepTheLargestPeak) {
  StageTimes times;
  EXPECT_EQ(times.time("first", [] { return touch(256 * kMebibyte); }), 1);
  times.time("second", [] {});
  times.time("first", [] {});
  ASSERT_EQ(times.stages().size(), 2);
  EXPECT_EQ(times.stages()[0].name, "first");
  EXPECT_GE(times.stages()[0].peak_bytes, 256 * kMebibyte);
  EXPECT_EQ(times.memory_to_json().at("first"), times.stages()[0].peak_bytes);
  EXPECT_EQ(times.to_json().size(), 2);
  EXPECT_THROW(times.time("third", [] { throw 1; }), int);
  EXPECT_EQ(times.stages()[2].name, "third");
  EXPECT_GE(times.peak_memory_bytes(), times.stages()[0].peak_bytes);
}

}  // namespace
}  // namespace thimble
