// forward.h: the golf-gpt forward pass over a Backend: tokens in, final hidden states or logits out.
// Serves whole windows (evaluation, Hessians) and cached generation with the same code.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/causal_forward.h"
#include "runtime/model.h"

namespace thimble {

struct ActivationTape;  // activation_tape.h

CacheShape cache_shape(const ModelConfig& config);

class ForwardPass final : public CausalForward {
 public:
  // `context_length` is T of the rotary base; no position may reach it.
  ForwardPass(const Model& model, Backend& backend, int64_t context_length);

  using CausalForward::hidden_states;
  using CausalForward::logits;
  ConstMatrixView hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                LinearObserver* observer) override {
    return hidden_states(batch, cache, first_needed, observer, nullptr);
  }
  // A tape, for which the batch must be one sequence from its start and first_needed 0, gets what a backward pass
  // needs.
  ConstMatrixView hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                LinearObserver* observer, ActivationTape* tape);

  // Softcapped. A tape gets the output of the head before that.
  void logits(ConstMatrixView hidden, MatrixView out, LinearObserver* observer) override {
    logits(hidden, out, observer, nullptr);
  }
  void logits(ConstMatrixView hidden, MatrixView out, LinearObserver* observer, ActivationTape* tape);

  const Model& model() const { return model_; }
  int64_t vocab_size() const override { return model_.config.vocab_size; }
  int64_t context_length() const override { return context_length_; }
  CacheShape cache_shape() const override { return thimble::cache_shape(model_.config); }
  Backend& backend() const override { return backend_; }
  const RotaryTable& rotary() const { return rotary_; }

 private:
  void embed(const TokenBatch& batch, KeyValueCache& cache, LinearObserver* observer, ActivationTape* tape);
  void attend(int64_t layer, const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
              LinearObserver* observer, ActivationTape* tape);
  void feed_forward(int64_t layer, int64_t first_needed, LinearObserver* observer, ActivationTape* tape);
  void keep(ConstMatrixView from, Matrix& to);
  void resize_for(int64_t rows);

  const Model& model_;
  Backend& backend_;
  int64_t context_length_;
  RotaryTable rotary_;
  int64_t rows_ = 0;
  BackendMatrix x_, x0_, u_, normed_, query_, key_, value_, attended_, branch_, wide_, gathered_;
  BackendMatrix value_rows_, value_embedding_;
  std::vector<BackendMatrix> skips_;
};

// Rotary tables for positions 0..context_length-1.
RotaryTable make_rotary_table(const ModelConfig& config, int64_t context_length);

// The bigram hash: ((36313*t) xor (27191*previous)) mod (B-1) in int32; B-1 without a previous.
int32_t bigram_bucket(int32_t token, int32_t previous, int64_t bigram_vocab_size);

// The bucket of every row of a batch.
std::vector<int32_t> bigram_buckets(const TokenBatch& batch, int64_t bigram_vocab_size);

}  // namespace thimble
