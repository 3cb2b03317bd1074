// gpt2_forward.h: the GPT-2 forward pass over a Backend (Radford et al. 2019, section 2.3; pre-norm blocks).
#pragma once

#include "runtime/cpu/causal_forward.h"
#include "runtime/families/gpt2/gpt2_model.h"

namespace thimble {

CacheShape cache_shape(const Gpt2Config& config);

class Gpt2Forward final : public CausalForward {
 public:
  // `model` and `backend` must outlive the object; `context_length` is at most the model's positions.
  Gpt2Forward(const Gpt2Model& model, Backend& backend, int64_t context_length);

  int64_t vocab_size() const override { return model_.config.vocab_size; }
  int64_t context_length() const override { return context_length_; }
  CacheShape cache_shape() const override { return thimble::cache_shape(model_.config); }
  Backend& backend() const override { return backend_; }

  using CausalForward::hidden_states;
  using CausalForward::logits;
  ConstMatrixView hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                LinearObserver* observer) override;
  void logits(ConstMatrixView hidden, MatrixView out, LinearObserver* observer) override;

 private:
  void resize_for(int64_t rows);
  void embed(const TokenBatch& batch);
  void attend(int64_t layer, const BatchShape& batch, KeyValueCache& cache, int64_t first_needed,
              LinearObserver* observer);
  void feed_forward(int64_t layer, int64_t first_needed, LinearObserver* observer);
  void norm(ConstMatrixView x, const NormWeights& weights, MatrixView y);
  void project(ConstMatrixView x, const AffineWeights& weights, int64_t first_output, MatrixView y);

  const Gpt2Model& model_;
  Backend& backend_;
  int64_t context_length_;
  // P rows of the batch; D model width, M MLP width.
  BackendMatrix x_;                          // (P, D) the residual stream
  BackendMatrix normed_, query_, attended_;  // (P, D)
  BackendMatrix branch_;                     // (P, D) what a block adds to x_
  BackendMatrix key_value_;                  // (P, 2D)
  BackendMatrix wide_;                       // (P, M)
};

}  // namespace thimble
