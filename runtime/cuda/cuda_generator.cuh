// cuda_generator.cuh: sampling text on the device: one graph launch per token, no host in the loop.
#pragma once

#include "runtime/cpu/generate.h"
#include "runtime/cuda/cuda_forward.cuh"

namespace thimble {

// Sequences that grow together, one token per step.
template <typename T>
class CudaGenerator {
 public:
  CudaGenerator(const CudaModel<T>& model, int64_t context, int64_t sequences);
  ~CudaGenerator();

  // Fills `sequences` x `length` tokens: the first token of sequence s is first_tokens[s], the others are drawn.
  // Progress advances by one per token.
  std::vector<uint16_t> generate(std::span<const uint16_t> first_tokens, int64_t length, double temperature,
                                 uint64_t seed, uint64_t first_stream, Progress& progress);
  // Continues one sequence; see LanguageModel::generate_text.
  void continue_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(uint16_t)>& on_token);

 private:
  void capture(const SampleRequest& request);
  void require_finite() const;

  const CudaModel<T>& model_;
  int64_t context_, sequences_;
  CudaStream stream_;
  CudaForward<T> forward_;
  CudaKeyValueCache<T> cache_;
  DeviceArray<uint16_t> tokens_;  // (sequences, context)
  DeviceArray<float> logits_;
  DeviceArray<int> position_, failed_;
  cudaGraphExec_t step_ = nullptr;
};

}  // namespace thimble
