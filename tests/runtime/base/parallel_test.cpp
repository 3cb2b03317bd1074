// parallel_test.cpp: every index once, exceptions reach the caller, nesting and thread limits.
#include "runtime/base/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace thimble::parallel_test {
namespace {

class Threads : public ::testing::TestWithParam<int> {
 protected:
  ThreadLimit limit_{GetParam()};
};
INSTANTIATE_TEST_SUITE_P(Parallel, Threads, ::testing::Values(1, 2, 5));

TEST_P(Threads, ForVisitsEveryIndexOnce) {
  for (int64_t count : {0, 1, 2, 7, 1000}) {
    std::vector<std::atomic<int>> visits(static_cast<size_t>(count));
    parallel_for(count, [&](int64_t i) { ++visits[static_cast<size_t>(i)]; });
    for (const auto& times : visits) EXPECT_EQ(times, 1);
  }
}

// Every one once, never more at a time than fit, but for one that is larger than all there is.
TEST_P(Threads, WithinALimit) {
  const std::vector<uint64_t> bytes = {90, 10, 50, 50, 40, 60, 120, 5, 5, 5, 5, 5, 5, 0, 100};
  for (uint64_t limit : {uint64_t{0}, uint64_t{60}, uint64_t{100}, UINT64_MAX}) {
    std::vector<int> visits(bytes.size());
    std::mutex mutex;
    uint64_t taken = 0;
    int running = 0;
    parallel_within(bytes, limit, [&](int64_t i) {
      const uint64_t own = bytes[static_cast<size_t>(i)];
      {
        std::lock_guard lock(mutex);
        ++visits[static_cast<size_t>(i)];
        taken += own;
        ++running;
        EXPECT_TRUE(running == 1 || taken <= limit) << taken << " of " << limit;
      }
      parallel_for(20, [](int64_t) { std::this_thread::sleep_for(std::chrono::microseconds(50)); });
      std::lock_guard lock(mutex);
      taken -= own;
      --running;
    });
    EXPECT_EQ(visits, std::vector<int>(bytes.size(), 1)) << limit;
  }
  parallel_within({}, 0, [](int64_t) { FAIL(); });
  EXPECT_THROW(parallel_within(bytes, 10, [](int64_t i) { i == 3 ? throw std::runtime_error("here") : void(); }),
               std::runtime_error);
}

TEST_P(Threads, ChunksAreFixedAndCoverTheRange) {
  for (int64_t count : {0, 1, 9, 10, 11, 1000}) {
    std::mutex mutex;
    std::set<std::pair<int64_t, int64_t>> chunks;
    parallel_chunks(count, 10, [&](int64_t first, int64_t last) {
      std::lock_guard lock(mutex);
      chunks.emplace(first, last);
    });
    std::set<std::pair<int64_t, int64_t>> expected;
    for (int64_t first = 0; first < count; first += 10) expected.emplace(first, std::min<int64_t>(first + 10, count));
    EXPECT_EQ(chunks, expected) << count;
  }
}

TEST_P(Threads, TheCountIsTheLimit) { EXPECT_EQ(thread_count(), GetParam()); }

TEST_P(Threads, AChunkMayExceedTheRange) {
  std::atomic<int> calls = 0;
  parallel_chunks(3, 100, [&](int64_t first, int64_t last) {
    ++calls;
    EXPECT_EQ(first, 0);
    EXPECT_EQ(last, 3);
  });
  EXPECT_EQ(calls, 1);
}

TEST_P(Threads, ExceptionsReachTheCaller) {
  for (int64_t bad : {0, 17, 99}) {
    try {
      parallel_for(100, [&](int64_t i) {
        if (i == bad) throw std::out_of_range("index " + std::to_string(i));
      });
      ADD_FAILURE() << "no exception";
    } catch (const std::out_of_range& error) {
      EXPECT_EQ(error.what(), "index " + std::to_string(bad));
    }
  }
  // The pool still works afterwards.
  std::atomic<int> calls = 0;
  parallel_for(10, [&](int64_t) { ++calls; });
  EXPECT_EQ(calls, 10);
}

TEST_P(Threads, ExceptionsLeaveNestedLoops) {
  EXPECT_THROW(parallel_for(4,
                            [](int64_t i) {
                              parallel_for(4, [i](int64_t j) {
                                if (i == 2 && j == 3) throw std::runtime_error("inner");
                              });
                            }),
               std::runtime_error);
}

TEST_P(Threads, NestedLoopsVisitEveryPair) {
  std::vector<std::atomic<int>> visits(20 * 30);
  parallel_for(20,
               [&](int64_t i) { parallel_for(30, [&, i](int64_t j) { ++visits[static_cast<size_t>(i * 30 + j)]; }); });
  for (const auto& times : visits) EXPECT_EQ(times, 1);
}

// A thread that waits for its inner loop must not begin a second outer body: its memory would be needed twice.
TEST_P(Threads, AThreadRunsOneOuterBodyAtATime) {
  static thread_local bool inside = false;
  std::atomic<bool> overlapped = false;
  parallel_for(50, [&](int64_t) {
    if (inside) overlapped = true;
    inside = true;
    std::atomic<int64_t> work = 0;
    parallel_for(50, [&](int64_t j) { work += j; });
    EXPECT_EQ(work, 49 * 50 / 2);
    inside = false;
  });
  EXPECT_FALSE(overlapped);
}

TEST(ThreadLimit, OneThreadIsTheCallersOwn) {
  ThreadLimit five(5);
  parallel_for(100, [](int64_t) { std::this_thread::yield(); });  // wakes workers that must not help below
  ThreadLimit limit(1);
  parallel_for(100, [caller = std::this_thread::get_id()](int64_t) { EXPECT_EQ(std::this_thread::get_id(), caller); });
}

TEST(ThreadLimit, EndsWithItsScope) {
  int before = thread_count();
  {
    ThreadLimit outer(3);
    EXPECT_EQ(thread_count(), 3);
    {
      ThreadLimit inner(2);
      EXPECT_EQ(thread_count(), 2);
    }
    EXPECT_EQ(thread_count(), 3);
  }
  EXPECT_EQ(thread_count(), before);
}

// What one task throws ends the outer loop; the others' inner loops are whole, or did not begin.
TEST_P(Threads, AnExceptionLeavesNoInnerLoopHalfDone) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<bool> is_thrown = false;
    std::atomic<int> half_done = 0;
    auto body = [&](int64_t i) {
      if (i == 1) {
        is_thrown = true;
        throw std::runtime_error("one");
      }
      for (int wait = 0; wait < 1000 && !is_thrown; ++wait) std::this_thread::sleep_for(std::chrono::microseconds(10));
      std::atomic<int> done = 0;
      parallel_for(200, [&](int64_t) {
        std::this_thread::sleep_for(std::chrono::microseconds(5));
        ++done;
      });
      half_done += done != 200;
    };
    EXPECT_THROW(parallel_for(4, body), std::runtime_error);
    EXPECT_EQ(half_done, 0);
  }
}

TEST(RunInThreads, AllAtOnceTheFirstOnTheCallers) {
  run_in_threads(0, [](size_t) { FAIL(); });
  for (size_t count : {1, 2, 5}) {
    std::vector<std::thread::id> threads(count);
    std::barrier all(static_cast<std::ptrdiff_t>(count));  // waits for ever unless all run at once
    run_in_threads(count, [&](size_t i) {
      threads[i] = std::this_thread::get_id();
      all.arrive_and_wait();
    });
    EXPECT_EQ(threads[0], std::this_thread::get_id());
    EXPECT_EQ(std::set(threads.begin(), threads.end()).size(), count);
  }
}

TEST(RunInThreads, OfSeveralExceptionsTheFirstBodys) {
  std::atomic<int> ended = 0;
  try {
    run_in_threads(4, [&](size_t i) {
      ++ended;
      if (i > 0) throw std::runtime_error(std::to_string(i));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "1");
  }
  EXPECT_EQ(ended, 4);
}

TEST(BackgroundTasks, AllHaveRunOnceTheyAreWaitedFor) {
  for (int threads : {1, 2}) {
    ThreadLimit limit(threads);
    BackgroundTasks tasks;
    tasks.wait();  // for none
    for (int round = 0; round < 3; ++round) {
      std::vector<std::atomic<int>> ran(100);
      // From a thread of its own, and from a loop.
      std::jthread([&] {
        for (size_t i = 0; i < 50; ++i) tasks.run([&ran, i] { ++ran[i]; });
      }).join();
      parallel_for(50, [&](int64_t i) {
        tasks.run([&ran, i] { parallel_for(3, [&](int64_t) { ++ran[50 + static_cast<size_t>(i)]; }); });
      });
      tasks.wait();
      for (size_t i = 0; i < ran.size(); ++i) EXPECT_EQ(ran[i], i < 50 ? 1 : 3) << i;
    }
  }
}

TEST(BackgroundTasks, ExceptionsReachWhoWaits) {
  BackgroundTasks tasks;
  for (int i = 0; i < 20; ++i) tasks.run([] { throw std::runtime_error("of a body"); });
  EXPECT_THROW(tasks.wait(), std::runtime_error);
  std::atomic<int> ran = 0;
  tasks.run([&] { ++ran; });
  tasks.wait();
  EXPECT_EQ(ran, 1);
}

TEST(BackgroundTasks, NoneRunsAfterTheEnd) {
  std::atomic<int> running = 0, begun = 0;
  for (int round = 0; round < 20; ++round) {
    {
      BackgroundTasks tasks;
      for (int i = 0; i < 50; ++i)
        tasks.run([&, round] {
          ++running;
          ++begun;
          std::this_thread::yield();
          --running;
          if (round % 2 == 1) throw std::runtime_error("nobody sees it");
        });
    }
    EXPECT_EQ(running, 0);
    const int last = begun;
    std::this_thread::yield();
    EXPECT_EQ(begun, last);
  }
}

TEST(ShareOf, PartsCoverTheWholeInOrder) {
  for (size_t count : {0, 1, 2, 7, 100}) {
    for (size_t parts : {1, 2, 3, 8}) {
      size_t next = 0;
      for (size_t part = 0; part < parts; ++part) {
        Share share = share_of(count, part, parts);
        EXPECT_EQ(share.begin, next);
        EXPECT_GE(share.size(), count / parts);
        EXPECT_LE(share.size(), count / parts + 1);
        next = share.end;
      }
      EXPECT_EQ(next, count);
    }
  }
}

TEST(ThreadLimit, ZeroMeansAllOfTheMachine) {
  ThreadLimit limit(0);
  EXPECT_GE(thread_count(), 1);
  EXPECT_LE(thread_count(), static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

}  // namespace
}  // namespace thimble::parallel_test
