// cuda_batch.cuh: what passes on a CUDA device run over, what they leave for later positions, and who looks on.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "runtime/cuda/cuda_network_weights.cuh"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_rows.cuh"

namespace thimble {

// Calls the body with a null pointer to the type in which a mode stores what it computes.
template <typename Body>
auto with_cuda_type(Numerics numerics, const Body& body) {
  switch (numerics) {
    case Numerics::kFp32: break;
    case Numerics::kFp16: return body(static_cast<__half*>(nullptr));
    case Numerics::kBf16:
    case Numerics::kSf16:
    case Numerics::kSf16Q115:
    case Numerics::kSf16Legacy:
    case Numerics::kSf16LegacyQ115:
    case Numerics::kNvfp4: return body(static_cast<__nv_bfloat16*>(nullptr));
  }
  return body(static_cast<float*>(nullptr));
}

// `tokens` and `first` lie in device memory.
struct CudaBatch {
  CudaTokens tokens;
  int sequences = 0, positions = 0;
  int needed = 0;              // the last positions of each sequence whose outputs are wanted
  const int* first = nullptr;  // position of each sequence's first row is *first + offset
  int offset = 0;

  int64_t rows() const { return static_cast<int64_t>(sequences) * positions; }
  RowPositions row_positions() const { return {first, offset, positions}; }
};

// Receives the input of every linear layer below the head, in device memory, while a pass runs.
template <typename T>
class CudaInputObserver {
 public:
  virtual ~CudaInputObserver() = default;
  // `weights`: names of the matrices that read x (sequences * positions, columns), rows without gaps. Valid for work
  // that is queued on `stream` during the call.
  virtual void on_linear_input(std::span<const std::string> weights, const T* x, int sequences, int positions,
                               int columns, cudaStream_t stream) = 0;
};

// Keys and values, of each of the network's caches or, when passes cover whole windows, of one at a time; and with the
// former what is kept of the last position alone.
template <typename T>
class CudaCache {
 public:
  CudaCache(const Network& network, int64_t sequences, int64_t capacity, bool shares_one) : capacity_(capacity) {
    std::vector<int64_t> widths;
    for (const Node& node : network.nodes)
      if (const auto* attention = std::get_if<op::Attention>(&node.operation))
        widths.push_back(2 * attention->kv_heads * cuda_head_width(attention->head_dim));
    if (shares_one && !widths.empty()) widths = {std::ranges::max(widths)};
    for (int64_t width : widths) {
      // Kernels read whole tiles: what no position has written must be finite, for its weight is 0.
      caches_.emplace_back(sequences * capacity * width, "key/value cache");
      caches_.back().fill_zero();
    }
    if (shares_one) return;
    for (int64_t width : network.state_widths) states_.emplace_back(sequences * width, "key/value cache");
    clear_states();
  }
  // Before a sequence begins anew.
  void clear_states() {
    for (DeviceArray<T>& state : states_) state.fill_zero();
  }

  // (S * capacity, 2 G * cuda_head_width(d)): row s * capacity + p holds sequence s, position p; keys, then values.
  T* keys(int32_t cache) const { return caches_[caches_.size() == 1 ? 0 : static_cast<size_t>(cache)].data(); }
  // (S, width), or null where one cache serves all: every sequence begins with nothing before it.
  T* state(int32_t state) const { return states_.empty() ? nullptr : states_[static_cast<size_t>(state)].data(); }
  int64_t capacity() const { return capacity_; }

 private:
  int64_t capacity_;
  std::vector<DeviceArray<T>> caches_, states_;
};

}  // namespace thimble
