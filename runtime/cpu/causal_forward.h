// causal_forward.h: what every model family's forward pass has in common: tokens in, final hidden states and logits
// out, with a key/value cache and observers of the linear layers. Scoring and generating know this interface alone.
// forward.h is the golf-gpt's, gpt2_forward.h the GPT-2's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/backend_matrix.h"
#include "runtime/ops/observers.h"
#include "runtime/ops/token_batch.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// What one position of a sequence leaves behind for later ones.
struct CacheShape {
  int64_t layers = 0;
  int64_t key_width = 0;    // of a layer's keys, and of its values: G*d
  int64_t state_width = 0;  // of what is kept of the last position alone: D with a smear gate in the family, else 0
};

// Keys, values and the last smear input of sequences that grow token by token.
class KeyValueCache {
 public:
  // Room in the backend's memory for `capacity` positions of `sequences` sequences. With `shared_layers` all layers use
  // the same memory: enough when a pass covers all positions of a window at once.
  KeyValueCache(Backend& backend, const CacheShape& shape, int64_t sequences, int64_t capacity, bool shared_layers);
  KeyValueView layer(int64_t index);
  BackendMatrix& smear_state() {
    return smear_state_;
  }  // (sequences, state_width): normed embedding of the last position
  int64_t capacity() const { return capacity_; }

  static uint64_t bytes_per_sequence(const CacheShape& shape, int64_t capacity);

 private:
  int64_t capacity_;
  std::vector<BackendMatrix> keys_, values_;  // one per layer, or one for all; (sequences * capacity, key_width)
  BackendMatrix smear_state_;
};

// A batch that holds one sequence from its start.
TokenBatch window_batch(std::span<const uint16_t> tokens);

// A causal language model's forward pass over a Backend. V vocabulary.
class CausalForward {
 public:
  virtual ~CausalForward() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t context_length() const = 0;  // no position may reach it
  virtual CacheShape cache_shape() const = 0;
  virtual Backend& backend() const = 0;

  // Runs all layers. Rows before `first_needed` (of each sequence, counted from the batch's first) skip what only their
  // own outputs need in the last layer. Returns the last layer's output, sequences * (positions - first_needed) rows,
  // valid until the next call. With more than one sequence first_needed must be 0.
  virtual ConstMatrixView hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                        LinearObserver* observer) = 0;
  // Logits (rows, V) of hidden states. The observer sees the input of the output head.
  virtual void logits(ConstMatrixView hidden, MatrixView out, LinearObserver* observer) = 0;

  ConstMatrixView hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed) {
    return hidden_states(batch, cache, first_needed, nullptr);
  }
  void logits(ConstMatrixView hidden, MatrixView out) { logits(hidden, out, nullptr); }

 protected:
  // Shows an observer, if there is one, what linear layers read.
  void show(LinearObserver* observer, std::span<const std::string> weights, ConstMatrixView input) const {
    if (!observer) return;
    backend().finish();
    observer->on_linear_input(weights, input);
  }
};

}  // namespace thimble
