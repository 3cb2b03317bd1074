// cpu_cache.h: what sequences that grow token by token leave behind for later positions.
#pragma once

#include <algorithm>
#include <cassert>
#include <cstdint>
#include <numeric>
#include <vector>

#include "runtime/ops/network.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

// Of calibration text, which is drawn at random: what the rounding of keys and values changes in probabilities is less
// than chance does.
constexpr DType kCalibrationCache = DType::kBF16;

class CpuCache {
 public:
  // Room for `capacity` positions of `sequences` sequences. Keys and values are kept as `type`: F32, or BF16, which
  // takes half the time to read and is for passes of at most kFewQueries positions.
  CpuCache(const Network& network, int64_t sequences, int64_t capacity, DType type = DType::kF32)
      : type_(type), capacity_(capacity) {
    assert(type == DType::kF32 || type == DType::kBF16);
    for (size_t cache = 0; cache < network.cache_widths.size(); ++cache) {
      const int64_t heads = heads_of(network, static_cast<int32_t>(cache));
      const size_t bytes = static_cast<size_t>(sequences * capacity * network.cache_widths[cache]) * dtype_bytes(type);
      caches_.push_back({heads, network.cache_widths[cache] / heads, Bytes(bytes), Bytes(bytes)});
    }
    for (int64_t width : network.state_widths) states_.emplace_back(sequences, width);
  }

  // Of one sequence and head, (capacity, d), which lie together: row p holds position p.
  StoredMatrixView keys(int32_t cache, int64_t sequence, int64_t head) const {
    return view(at(cache), at(cache).keys, sequence, head);
  }
  StoredMatrixView values(int32_t cache, int64_t sequence, int64_t head) const {
    return view(at(cache), at(cache).values, sequence, head);
  }
  // Keeps what all heads have at a position, (G d) each.
  void store(int32_t cache, int64_t sequence, int64_t position, const float* keys, const float* values) {
    Cache& to = caches_[static_cast<size_t>(cache)];
    store(to, to.keys, sequence, position, keys);
    store(to, to.values, sequence, position, values);
  }
  // (sequences, width) of what is kept of the last position alone.
  Matrix& state(int32_t state) { return states_[static_cast<size_t>(state)]; }
  int64_t capacity() const { return capacity_; }

  static uint64_t bytes_per_sequence(const Network& network, int64_t capacity, DType type) {
    const int64_t width = std::accumulate(network.cache_widths.begin(), network.cache_widths.end(), int64_t{0});
    return static_cast<uint64_t>(2 * capacity * width) * dtype_bytes(type);
  }

 private:
  using Bytes = AlignedVector<std::byte>;
  struct Cache {
    int64_t heads, head_dim;
    Bytes keys, values;  // (sequences, heads, capacity, head_dim)
  };

  static int64_t heads_of(const Network& network, int32_t cache) {
    for (const Node& node : network.nodes)
      if (const auto* attention = std::get_if<op::Attention>(&node.operation); attention && attention->cache == cache)
        return attention->kv_heads;
    return 1;
  }
  const Cache& at(int32_t cache) const { return caches_[static_cast<size_t>(cache)]; }
  size_t offset(const Cache& of, int64_t sequence, int64_t head, int64_t position) const {
    return static_cast<size_t>(((sequence * of.heads + head) * capacity_ + position) * of.head_dim) *
           dtype_bytes(type_);
  }
  StoredMatrixView view(const Cache& of, const Bytes& bytes, int64_t sequence, int64_t head) const {
    StoredMatrixView all;
    all.dtype = type_;
    all.data = bytes.data() + offset(of, sequence, head, 0);
    all.rows = capacity_;
    all.cols = all.stride = of.head_dim;
    return all;
  }
  void store(const Cache& of, Bytes& bytes, int64_t sequence, int64_t position, const float* from) const {
    for (int64_t head = 0; head < of.heads; ++head, from += of.head_dim) {
      std::byte* to = bytes.data() + offset(of, sequence, head, position);
      if (type_ == DType::kF32)
        std::copy_n(from, of.head_dim, reinterpret_cast<float*>(to));
      else
        std::transform(from, from + of.head_dim, reinterpret_cast<uint16_t*>(to), bf16_from_float);
    }
  }

  DType type_;
  int64_t capacity_;
  std::vector<Cache> caches_;
  std::vector<Matrix> states_;
};

}  // namespace thimble
