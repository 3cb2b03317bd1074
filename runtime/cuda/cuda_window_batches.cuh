// cuda_window_batches.cuh: batches of equal windows through CudaPass, uploads and downloads overlapped with the
// kernels.
#pragma once

#include "runtime/cuda/cuda_pass.cuh"
#include "runtime/ops/scorer.h"

namespace thimble {

template <typename T>
class CudaWindowBatches {
 public:
  // Buffers for `windows` windows of `context` inputs at a time.
  CudaWindowBatches(const CudaNetworkWeights<T>& weights, int64_t context, int64_t windows);
  ~CudaWindowBatches();

  int64_t windows() const { return windows_; }
  void score(std::span<const ScoreWindow> windows, std::span<float> nll);
  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out);
  // Hands the inputs of all linear layers to the observer, of `sequences` of `length` tokens that begin every `stride`
  // tokens; `length` <= context.
  void observe(std::span<const Token> tokens, int64_t sequences, int64_t length, int64_t stride,
               CudaInputObserver<T>& observer);
  // Room for what observe() needs besides its tokens and its observer's.
  void reserve_shown() { pass_.reserve_shown(); }

 private:
  struct Slot {  // one batch in flight
    PinnedArray<Token> host_tokens, host_targets;
    PinnedArray<float> host_nll;
    DeviceArray<Token> tokens, targets;
    DeviceArray<float> nll;
    CudaEvent done;
    std::span<float> destination;  // empty: nothing is in flight
  };
  void start(Slot& slot, std::span<const ScoreWindow> batch, std::span<float> nll);
  void finish(Slot& slot);

  int64_t context_, windows_;
  CudaStream stream_;
  CudaPass<T> pass_;
  CudaCache<T> cache_;
  DeviceArray<int> zero_;
  Slot slots_[2];
};

}  // namespace thimble
