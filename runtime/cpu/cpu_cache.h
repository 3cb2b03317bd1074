// cpu_cache.h: what sequences that grow token by token leave behind for later positions.
#pragma once

#include <cstdint>
#include <numeric>
#include <vector>

#include "runtime/ops/network.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

class CpuCache {
 public:
  // Room for `capacity` positions of `sequences` sequences.
  CpuCache(const Network& network, int64_t sequences, int64_t capacity) : capacity_(capacity) {
    for (int64_t width : network.cache_widths) {
      keys_.emplace_back(sequences * capacity, width);
      values_.emplace_back(sequences * capacity, width);
    }
    for (int64_t width : network.state_widths) states_.emplace_back(sequences, width);
  }

  // (sequences * capacity, G d): row s * capacity + p holds sequence s, position p.
  Matrix& keys(int32_t cache) { return keys_[static_cast<size_t>(cache)]; }
  Matrix& values(int32_t cache) { return values_[static_cast<size_t>(cache)]; }
  // (sequences, width) of what is kept of the last position alone.
  Matrix& state(int32_t state) { return states_[static_cast<size_t>(state)]; }
  int64_t capacity() const { return capacity_; }

  static uint64_t bytes_per_sequence(const Network& network, int64_t capacity) {
    const int64_t width = std::accumulate(network.cache_widths.begin(), network.cache_widths.end(), int64_t{0});
    return static_cast<uint64_t>(2 * capacity * width) * sizeof(float);
  }

 private:
  int64_t capacity_;
  std::vector<Matrix> keys_, values_, states_;
};

}  // namespace thimble
