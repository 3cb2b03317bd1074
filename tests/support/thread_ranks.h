// thread_ranks.h: ranks that are threads of one process: what runs over MPI, tested without it.
#pragma once

#include <barrier>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/parallel.h"
#include "runtime/device/ranks.h"

namespace thimble {

// What the threads share.
struct ThreadRanksHub {
  explicit ThreadRanksHub(int size) : meeting(size) {}
  std::barrier<> meeting;
  ByteVector message;
};

class ThreadRanks final : public Ranks {
 public:
  ThreadRanks(ThreadRanksHub& hub, int rank, int size) : hub_(hub), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  void broadcast(ByteVector& bytes, int from) override {
    if (rank_ == from) hub_.message = bytes;
    hub_.meeting.arrive_and_wait();
    bytes = hub_.message;
    hub_.meeting.arrive_and_wait();
  }
  void end_all(int) override {}

 private:
  ThreadRanksHub& hub_;
  int rank_, size_;
};

// Runs `body` as each of `size` ranks. They must make the same collective calls, and an exception must meet all of them
// alike, or the call never returns.
inline void run_as_ranks(int size, const std::function<void(Ranks&)>& body) {
  ThreadRanksHub hub(size);
  run_in_threads(static_cast<size_t>(size), [&](size_t rank) {
    ThreadRanks ranks(hub, static_cast<int>(rank), size);
    body(ranks);
  });
}

}  // namespace thimble
