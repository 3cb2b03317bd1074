// parallel.cpp: oneTBB behind parallel.h.
#include "runtime/base/parallel.h"

#include <fmt/format.h>
#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <exception>
#include <latch>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/base/error.h"

namespace thimble {
namespace {

// How many threads beside this one the system lets start at a time, up to `wanted`.
size_t startable_threads(size_t wanted) {
  std::latch gate(1);
  struct Opening {
    std::latch& gate;
    ~Opening() { gate.count_down(); }
  };
  std::vector<std::jthread> threads;
  threads.reserve(wanted);
  Opening opening{gate};  // before the threads are joined, however this ends
  try {
    while (threads.size() < wanted) threads.emplace_back([&] { gate.wait(); });
  } catch (const std::system_error&) {
  }
  return threads.size();
}

}  // namespace

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  // Isolated: a thread that waits for an inner loop must not start another task of an outer one, which would hold two
  // tasks' memory at once.
  tbb::this_task_arena::isolate([&] {
    // Its own: an exception in an outer loop must not cut this one short, whose caller would go on with half of it.
    tbb::task_group_context context(tbb::task_group_context::isolated);
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, count, 1),
        [&](const tbb::blocked_range<int64_t>& range) {
          for (int64_t i = range.begin(); i != range.end(); ++i) body(i);
        },
        tbb::simple_partitioner(), context);
  });
}

void parallel_within(std::span<const uint64_t> bytes, uint64_t limit_bytes, const std::function<void(int64_t)>& body) {
  std::mutex mutex;
  std::vector<bool> is_started(bytes.size());
  size_t running = 0, turned_away = 0;
  uint64_t taken = 0;
  // The first that has not started and finds room.
  auto start_one = [&]() -> std::optional<size_t> {
    for (size_t i = 0; i < bytes.size(); ++i) {
      if (is_started[i] || (running > 0 && (taken > limit_bytes || bytes[i] > limit_bytes - taken))) continue;
      is_started[i] = true;
      ++running;
      taken += bytes[i];
      return i;
    }
    return std::nullopt;
  };
  // Each task runs one, or is turned away: then one that ends runs another in its place.
  parallel_for(std::ssize(bytes), [&](int64_t) {
    std::unique_lock lock(mutex);
    std::optional<size_t> i = start_one();
    if (!i) ++turned_away;
    while (i) {
      lock.unlock();
      body(static_cast<int64_t>(*i));  // where it throws, nothing else starts that is not already under way
      lock.lock();
      --running;
      taken -= bytes[*i];
      i = turned_away > 0 ? start_one() : std::nullopt;
      if (i) --turned_away;
    }
  });
}

void run_in_threads(size_t count, const std::function<void(size_t)>& body) {
  std::vector<std::exception_ptr> errors(count);
  auto run = [&](size_t i) {
    try {
      body(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 1; i < count; ++i) threads.emplace_back(run, i);
    if (count > 0) run(0);
  }
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

// An arena of their own: whoever waits there runs none but these, and threads come to it last.
struct BackgroundTasks::Group {
  tbb::task_arena arena{tbb::task_arena::automatic, 1, tbb::task_arena::priority::low};
  tbb::task_group tasks;
};

BackgroundTasks::BackgroundTasks() : group_(std::make_unique<Group>()) {}

BackgroundTasks::~BackgroundTasks() {
  group_->tasks.cancel();
  try {
    wait();
  } catch (...) {  // nobody asked for its results
  }
}

void BackgroundTasks::run(std::function<void()> body) { group_->arena.enqueue(group_->tasks.defer(std::move(body))); }

void BackgroundTasks::wait() {
  group_->arena.execute([&] { group_->tasks.wait(); });
}

int thread_count() {
  return static_cast<int>(tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism));
}

ThreadLimit::ThreadLimit(int threads) {
  auto limit = static_cast<size_t>(threads > 0 ? threads : tbb::info::default_concurrency());
  if (const size_t found = 1 + startable_threads(limit - 1); found < limit)
    throw Error(
        ExitCode::kInternal,
        fmt::format("the system lets {} of {} threads start; raise its limit on processes (ulimit -u, or that of "
                    "the container), or give --threads {}",
                    found, limit, found));
  control_ = std::make_shared<tbb::global_control>(tbb::global_control::max_allowed_parallelism, limit);
}

}  // namespace thimble
