// block_feed.h: decompresses the blocks of a stored model ahead of those who take them: on the thread pool, in order,
// from the moment it is made. A device is set up, and takes the first blocks, while the last ones are decompressed.
#pragma once

#include <atomic>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/codes/stored_model.h"

namespace thimble {

class BlockFeed {
 public:
  // `stored` must outlive the feed. Memory: the bytes of all blocks.
  explicit BlockFeed(const StoredModel& stored);
  ~BlockFeed();  // leaves undone what has not been begun
  BlockFeed(const BlockFeed&) = delete;
  BlockFeed& operator=(const BlockFeed&) = delete;

  // StoredModel::read(block), its errors included. Waits until it is there; from any number of threads.
  Bytes take(size_t block) const { return blocks_[block].get(); }

 private:
  void run();

  const StoredModel& stored_;
  std::vector<std::promise<ByteVector>> promises_;
  std::vector<std::shared_future<ByteVector>> blocks_;
  std::atomic<bool> is_stopped_ = false;
  std::jthread thread_;  // the last member: it uses the others
};

}  // namespace thimble
