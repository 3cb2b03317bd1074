// windows_test.cpp: every target exactly once, with as much context as the plan allows.
#include "eval/score/windows.h"

#include <gtest/gtest.h>

#include "runtime/base/error.h"

namespace thimble::windows_test {
namespace {

TEST(Windows, EveryTargetIsScoredOnceForAllSmallShapes) {
  for (int64_t targets = 0; targets <= 40; ++targets)
    for (int64_t context = 1; context <= 12; ++context)
      for (int64_t stride = 1; stride <= context; ++stride) {
        std::vector<int> scored(targets, 0);
        int64_t next = 0, start = 0;
        for (const Window& window : plan_windows(targets, context, stride)) {
          ASSERT_EQ(window.first_token, start);
          ASSERT_EQ(window.target_begin, next);
          ASSERT_LE(window.first_token, window.target_begin);
          ASSERT_LT(window.target_begin, window.target_end);
          ASSERT_LE(window.input_count(), context);
          for (int64_t t = window.target_begin; t < window.target_end; ++t) ++scored[t];
          // After the first window a target sees all but stride - 1 of the context, at least.
          if (start > 0) {
            ASSERT_GE(window.target_begin - window.first_token, context - stride);
          }
          next = window.target_end;
          start += stride;
        }
        for (int times : scored) ASSERT_EQ(times, 1) << targets << ' ' << context << ' ' << stride;
      }
}

TEST(Windows, PublishedCounts) {
  EXPECT_EQ(plan_windows(600000, 2048, 64).size(), 9344U);
  EXPECT_EQ(plan_windows(250000, 2048, 64).size(), 3876U);
  EXPECT_EQ(plan_windows(62021632, 2048, 64).size(), 969057U);
}

TEST(Windows, TheTailIsNotRescored) {
  std::vector<Window> windows = plan_windows(10, 8, 4);
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[1], (Window{4, 8, 10}));
}

TEST(Windows, OneWindowWhenTheContextHoldsEverything) {
  std::vector<Window> windows = plan_windows(5, int64_t{1} << 62, 1);
  ASSERT_EQ(windows.size(), 1U);
  EXPECT_EQ(windows[0], (Window{0, 0, 5}));
}

TEST(Windows, BadOptionsAreUsageErrors) {
  EXPECT_THROW(plan_windows(10, 8, 0), UsageError);
  EXPECT_THROW(plan_windows(10, 8, -1), UsageError);
  EXPECT_THROW(plan_windows(10, 8, 9), UsageError);  // would skip targets
  EXPECT_THROW(plan_windows(10, 0, 0), UsageError);
  EXPECT_THROW(plan_windows(-1, 8, 4), UsageError);
}

}  // namespace
}  // namespace thimble::windows_test
