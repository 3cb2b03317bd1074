// cuda_scorer.cuh: batches of equal windows through CudaForward, uploads and downloads overlapped with the kernels.
#pragma once

#include "runtime/cuda_forward.cuh"
#include "runtime/language_model.h"

namespace thimble {

// Rows of a batch per multiprocessor: eight tiles of 128, so that the tiles of every product come out even.
constexpr int64_t kRowsPerMultiprocessor = 1024;

// Windows of `context` rows in a batch, if they fit: enough to fill the current device many times over; more would only
// take memory.
int64_t windows_per_batch(int64_t context);

template <typename T>
class CudaScorer {
 public:
  // Buffers for as many windows of `context` inputs as keep the device busy, fewer when its free memory asks for it. A
  // DeviceError that says how much one window needs when not even that is free.
  CudaScorer(const CudaModel<T>& model, int64_t context);
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
