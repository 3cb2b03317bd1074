// cpu_cache.cpp: see cpu_cache.h.
#include "runtime/cpu/cpu_cache.h"

#include <numeric>

namespace thimble {

CpuCache::CpuCache(const Network& network, int64_t sequences, int64_t capacity) : capacity_(capacity) {
  for (int64_t width : network.cache_widths) {
    keys_.emplace_back(sequences * capacity, width);
    values_.emplace_back(sequences * capacity, width);
  }
  for (int64_t width : network.state_widths) states_.emplace_back(sequences, width);
}

uint64_t CpuCache::bytes_per_sequence(const Network& network, int64_t capacity) {
  const int64_t width = std::accumulate(network.cache_widths.begin(), network.cache_widths.end(), int64_t{0});
  return static_cast<uint64_t>(2 * capacity * width) * sizeof(float);
}

}  // namespace thimble
