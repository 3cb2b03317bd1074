// forward.h: the golf-gpt forward pass over a Backend: tokens in, final hidden states or logits out.
// Serves whole windows (evaluation, Hessians) and cached generation with the same code.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/causal_forward.h"
#include "runtime/families/golf/model.h"

namespace thimble {

struct ActivationTape;    // activation_tape.h
struct LayerActivations;  // activation_tape.h

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

  // A pass in steps, between which the model's weights may change. Input kInputsOfLayer * layer + i is read by the
  // layer's query, key and value (i = 0), its attention's output (1), its MLP's first (2) and second matrix (3).
  // begin() leaves input 0 at hand, advance(input, ...) runs what reads that one, up to the next. A cache that layers
  // share is free between them.
  void begin(const TokenBatch& batch, KeyValueCache& cache) { begin(batch, cache, 0, nullptr, nullptr); }
  void advance(int64_t input, KeyValueCache& cache);
  // Hands the input at hand to the observer.
  void show_input(int64_t input, LinearObserver& observer);
  static constexpr int64_t kInputsOfLayer = 4;

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
  void begin(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed, LinearObserver* observer,
             ActivationTape* tape);
  void open_layer(int64_t layer);
  void attend(int64_t layer, KeyValueCache& cache);
  void add_attention(int64_t layer);
  void widen(int64_t layer);
  void end_layer(int64_t layer);
  // The rows whose outputs a layer needs.
  MatrixView needed_rows(BackendMatrix& matrix, int64_t layer) const {
    const int64_t first = first_needed_of(layer);
    return matrix.view().block_rows(first, rows_ - first);
  }
  int64_t first_needed_of(int64_t layer) const { return layer + 1 == model_.config.num_layers ? first_needed_ : 0; }
  float depth_scale(int64_t layer) const;
  LayerActivations* tape_of(int64_t layer) const;
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
  // Of the batch that runs.
  BatchShape shape_;
  int64_t first_needed_ = 0;
  ActivationTape* tape_ = nullptr;
};

// Rotary tables for positions 0..context_length-1.
RotaryTable make_rotary_table(const ModelConfig& config, int64_t context_length);

// The bigram hash: ((36313*t) xor (27191*previous)) mod (B-1) in int32; B-1 without a previous.
int32_t bigram_bucket(int32_t token, int32_t previous, int64_t bigram_vocab_size);

// The bucket of every row of a batch.
std::vector<int32_t> bigram_buckets(const TokenBatch& batch, int64_t bigram_vocab_size);

}  // namespace thimble
