// cuda_sequences.cuh: sampling text on the device: one graph launch per token, no host in the loop.
#pragma once

#include <functional>

#include "runtime/base/progress.h"
#include "runtime/cuda/cuda_pass.cuh"

namespace thimble {

// Sequences that grow together, one token per step.
template <typename T>
class CudaSequences {
 public:
  CudaSequences(const CudaNetworkWeights<T>& weights, int64_t context, int64_t sequences);
  // Of the pass that continue_text() makes besides, for the prompt.
  static CudaPassShape prompt_shape(int64_t context, int64_t prompt) { return {context, prompt, 1, false}; }
  ~CudaSequences();

  // Fills `sequences` x `length` tokens: the first token of sequence s is first_tokens[s], the others are drawn.
  // Progress advances by one per token.
  std::vector<Token> generate(std::span<const Token> first_tokens, int64_t length, double temperature, uint64_t seed,
                              uint64_t first_stream, Progress& progress);
  // Continues one sequence; see Generator::text().
  void continue_text(std::span<const Token> prompt, int64_t most_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(Token)>& on_token);

 private:
  SampleRequest request(double temperature, uint64_t seed, uint64_t first_stream, int first_position) const;
  void capture(const SampleRequest& request, int64_t steps);
  void require_finite() const;

  const CudaNetworkWeights<T>& weights_;
  int64_t context_, sequences_;
  CudaStream stream_;
  CudaPass<T> pass_;
  CudaCache<T> cache_;
  DeviceArray<Token> tokens_;  // (sequences, context)
  DeviceArray<float> logits_;
  DeviceArray<int> position_, failed_;
  cudaGraphExec_t steps_ = nullptr;
};

}  // namespace thimble
