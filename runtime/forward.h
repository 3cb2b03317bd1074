// forward.h: the golf-gpt forward pass over a Backend: tokens in, final hidden states or logits out.
// Serves whole windows (evaluation, Hessians) and cached generation with the same code.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/backend.h"
#include "runtime/model.h"

namespace thimble {

// Receives the input of every linear layer while a forward pass runs.
class LinearObserver {
 public:
  virtual ~LinearObserver() = default;
  // `weights`: unbanked names of the matrices that this input (P, K) multiplies. Valid during the call only.
  virtual void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) = 0;
};

// Keys, values and the last smear input of sequences that grow token by token.
class KeyValueCache {
 public:
  // Room for `capacity` positions of `sequences` sequences. With `shared_layers` all layers use the same memory: enough
  // when a pass covers all positions of a window at once.
  KeyValueCache(const ModelConfig& config, int64_t sequences, int64_t capacity, bool shared_layers);
  KeyValueView layer(int64_t index);
  Matrix& smear_state() { return smear_state_; }  // (sequences, D): normed embedding of the last position so far
  int64_t capacity() const { return capacity_; }

  static uint64_t bytes_per_sequence(const ModelConfig& config, int64_t capacity);

 private:
  int64_t capacity_;
  std::vector<Matrix> keys_, values_;  // one per layer, or one for all; (sequences * capacity, G*d)
  Matrix smear_state_;
};

// The tokens of a batch and, for each, the token before it in its sequence (kNoToken for a sequence's first).
struct TokenBatch {
  static constexpr int32_t kNoToken = -1;
  std::vector<int32_t> tokens, previous;  // (S * positions), sequence-major
  BatchShape shape;
};

struct ActivationTape;  // activation_tape.h

class ForwardPass {
 public:
  // `context_length` is T of the rotary base; no position may reach it.
  ForwardPass(const Model& model, Backend& backend, int64_t context_length);

  // Runs all layers. Rows before `first_needed` (of each sequence, counted from the batch's first) skip what only their
  // own outputs need in the last layer. Returns the last layer's output, sequences * (positions - first_needed) rows.
  // With more than one sequence first_needed must be 0. A tape, for which the batch must be one sequence from its start
  // and first_needed 0, gets what a backward pass needs.
  ConstMatrixView hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                LinearObserver* observer = nullptr, ActivationTape* tape = nullptr);

  // Softcapped logits (rows, V) of hidden states. The observer sees the input of the output head, a tape gets its
  // output.
  void logits(ConstMatrixView hidden, MatrixView out, LinearObserver* observer = nullptr,
              ActivationTape* tape = nullptr);

  const Model& model() const { return model_; }
  int64_t context_length() const { return context_length_; }
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
  Matrix x_, x0_, u_, normed_, query_, key_, value_, attended_, branch_, wide_, gathered_, value_embedding_;
  std::vector<Matrix> skips_;
};

// Rotary tables for positions 0..context_length-1.
RotaryTable make_rotary_table(const ModelConfig& config, int64_t context_length);

// The bigram hash: ((36313*t) xor (27191*previous)) mod (B-1) in int32; B-1 without a previous.
int32_t bigram_bucket(int32_t token, int32_t previous, int64_t bigram_vocab_size);

// The bucket of every row of a batch.
std::vector<int32_t> bigram_buckets(const TokenBatch& batch, int64_t bigram_vocab_size);

// A batch that holds one sequence from its start.
TokenBatch window_batch(std::span<const uint16_t> tokens);

}  // namespace thimble
