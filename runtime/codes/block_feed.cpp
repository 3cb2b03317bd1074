// block_feed.cpp: one thread that runs a parallel loop over the blocks.
#include "runtime/codes/block_feed.h"

#include "runtime/base/parallel.h"

namespace thimble {

BlockFeed::BlockFeed(const StoredModel& stored) : stored_(stored), promises_(stored.blocks().size()) {
  for (std::promise<ByteVector>& promise : promises_) blocks_.push_back(promise.get_future().share());
  thread_ = std::jthread([this] { run(); });
}

BlockFeed::~BlockFeed() { is_stopped_ = true; }

void BlockFeed::run() {
  std::atomic<size_t> next = 0;  // the loop's own order is not that of the blocks
  parallel_for(static_cast<int64_t>(promises_.size()), [&](int64_t) {
    size_t block = next++;
    if (is_stopped_) return;
    // An error belongs to the one who takes the block.
    try {
      promises_[block].set_value(stored_.read(block));
    } catch (...) {
      promises_[block].set_exception(std::current_exception());
    }
  });
}

}  // namespace thimble
