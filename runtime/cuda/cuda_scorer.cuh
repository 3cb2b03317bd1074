// cuda_scorer.cuh: batches of equal windows through CudaForward, uploads and downloads overlapped with the kernels.
#pragma once

#include "runtime/cuda/cuda_forward.cuh"
#include "runtime/device/language_model.h"

namespace thimble {

template <typename T>
class CudaScorer {
 public:
  // Buffers for `windows` windows of `context` inputs at a time; memory_plan.cpp counts them.
  CudaScorer(const CudaModel<T>& model, int64_t context, int64_t windows);
  ~CudaScorer();

  int64_t windows() const { return windows_; }
  void score(std::span<const ScoreWindow> windows, std::span<float> nll);
  void log_probabilities(std::span<const uint16_t> inputs, MatrixView out);
  // Hands the inputs of all linear layers to the observer, `sequences` of `length` tokens at a time; `length` <=
  // context.
  void observe(std::span<const uint16_t> tokens, int64_t sequences, int64_t length, int64_t stride,
               CudaInputObserver<T>& observer);

 private:
  struct Slot {  // one batch in flight
    PinnedArray<uint16_t> host_tokens, host_targets;
    PinnedArray<float> host_nll;
    DeviceArray<uint16_t> tokens, targets;
    DeviceArray<float> nll;
    cudaEvent_t done = nullptr;
    std::span<float> destination;  // empty: nothing is in flight
  };
  void start(Slot& slot, std::span<const ScoreWindow> batch, std::span<float> nll);
  void finish(Slot& slot);

  const CudaModel<T>& model_;
  int64_t context_, windows_;
  CudaStream stream_;
  CudaForward<T> forward_;
  CudaKeyValueCache<T> cache_;
  DeviceArray<int> zero_;
  Slot slots_[2];
};

}  // namespace thimble
