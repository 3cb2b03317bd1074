// cuda_sequences.cuh: sampling text on the device: one graph launch per token, no host in the loop.
#pragma once

#include <functional>

#include "runtime/base/progress.h"
#include "runtime/cuda/cuda_pass.cuh"
#include "runtime/ops/generator.h"

namespace thimble {

// Sequences that grow together, one token per step.
template <typename T>
class CudaSequences {
 public:
  CudaSequences(const CudaNetworkWeights<T>& weights, int64_t context, int64_t sequences);
  // Of the pass that continue_text() makes besides, for the prompt.
  static CudaPassShape prompt_shape(int64_t context, int64_t prompt) { return {context, prompt, 1, false}; }
  ~CudaSequences();

  // Sequences from number `first` of the script on, as many as grow together; see Generator::calibration().
  std::vector<Token> generate(const TextScript& script, int64_t first, Progress& progress);
  // Continues one sequence; see Generator::text().
  void continue_text(std::span<const Token> prompt, int64_t most_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(Token)>& on_token);

 private:
  SampleRequest request(double temperature, uint64_t seed, uint64_t first_stream, int first_position) const;
  void capture(SampleRequest request, int steps);
  void require_finite() const;

  const CudaNetworkWeights<T>& weights_;
  int64_t context_, sequences_;
  CudaStream stream_;
  CudaPass<T> pass_;
  CudaCache<T> cache_;
  DeviceArray<Token> tokens_;       // (sequences, context); kDrawn where none is yet
  DeviceArray<Token> never_drawn_;  // (vocabulary) at most
  DeviceArray<float> logits_;
  DeviceArray<int> position_, failed_;
  cudaGraphExec_t steps_ = nullptr;
};

}  // namespace thimble
