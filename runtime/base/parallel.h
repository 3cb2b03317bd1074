// parallel.h: parallel loops (oneTBB). Bodies write disjoint outputs, so results never depend on the thread count.
// Exceptions thrown by a body reach the caller. Nested loops are fine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

namespace thimble {

// Calls body(i) for i in [0, count), one task each.
void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

// Calls body(first, last) on the fixed chunks [0, chunk), [chunk, 2 * chunk), ... of [0, count).
void parallel_chunks(int64_t count, int64_t chunk, const std::function<void(int64_t, int64_t)>& body);

// Calls body(i) for i in [0, bytes.size()), in about that order, as many at a time as take at most `limit_bytes`
// together, i taking bytes[i]; one at least. Loops in bodies may use all threads.
void parallel_within(std::span<const uint64_t> bytes, uint64_t limit_bytes, const std::function<void(int64_t)>& body);

// Calls body(row) for every row of a matrix of `width` floats a row, in any order: in chunks of enough work for a task.
void for_each_row(int64_t rows, int64_t width, const std::function<void(int64_t)>& body);

// Calls body(i) for i in [0, count) at once, 0 on the caller's thread and each other on its own: for bodies that wait
// for a device. Returns when all have; of their exceptions, the one of the lowest i is thrown again.
void run_in_threads(size_t count, const std::function<void(size_t)>& body);

// The part of [0, count) that the `part`-th of `parts` takes: contiguous, in order, sizes at most one apart.
struct Share {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
};
constexpr Share share_of(size_t count, size_t part, size_t parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

// Bodies that run in any order on threads which loops leave idle, while who gave them goes on: what can be done ahead
// of being asked for.
class BackgroundTasks {
 public:
  BackgroundTasks();
  ~BackgroundTasks();  // waits for those that have begun; the others do not run any more
  // From any thread, but not from a body.
  void run(std::function<void()> body);
  // Until all that were given have ended, running some of them. Throws what one threw; then others may not have run.
  // One thread at a time.
  void wait();

 private:
  struct Group;  // of oneTBB
  std::unique_ptr<Group> group_;
};

int thread_count();

// While alive, loops use at most `threads` threads (0: all the machine's). An Error when so many cannot be started.
class ThreadLimit {
 public:
  explicit ThreadLimit(int threads);

 private:
  std::shared_ptr<void> control_;  // tbb::global_control
};

}  // namespace thimble
