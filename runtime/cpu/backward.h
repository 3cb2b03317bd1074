// backward.h: the gradient of the loss of one window, from the logits down to the embeddings.
// In: what a forward pass kept (ActivationTape), what it should have predicted.
// Out: for each linear layer the gradient at its output, for each table the gradient at what was looked up, and on
// request the gradients of gains, scales and gates. The formulas are in docs/reference/gradients.md.
// The CPU's, the reference. Not here: gradients of matrices, which are sums of outer products of what the observers of
// the two passes see: dW = (gradient at the output)^T (input).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/backend.h"
#include "runtime/families/golf/model.h"
#include "runtime/ops/activation_tape.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// Gradients of the fields of LayerWeights of the same names, as they are there (gates after sigma). Empty or 0 where
// the layer has none.
struct LayerGradients {
  std::vector<double> q_gain;                  // (H)
  std::vector<double> attn_scale, mlp_scale;   // (D)
  std::vector<double> mix_x, mix_x0;           // (D)
  std::vector<double> skip_weight, skip_gate;  // (D)
  double value_embedding_scale = 0;
};

// Gradients of the small tensors of a Model, by the names they have there.
struct SmallGradients {
  double bigram_scale = 0;
  std::vector<double> smear_gate;  // (D)
  std::vector<LayerGradients> layers;
};

// What the model should have predicted at each position of a window, and so the loss, in nats. One of the two is given.
struct LossTargets {
  // Next tokens (P): the loss is sum_p -ln softmax(logits[p])[tokens[p]].
  static LossTargets next_tokens(std::span<const uint16_t> tokens) { return {tokens, {}}; }
  // Softcapped logits (P, V) of a teacher: the loss is sum_p KL(softmax(teacher[p]) || softmax(logits[p])).
  static LossTargets teacher(ConstMatrixView logits) { return {{}, logits}; }

  std::span<const uint16_t> tokens;
  ConstMatrixView logits;
};

class BackwardPass {
 public:
  // `rotary` is that of the forward pass. All three must outlive the object.
  BackwardPass(const Model& model, Backend& backend, const RotaryTable& rotary);

  // `logits` (P, V): softcapped, from the tape's output; overwritten. Returns the loss. `small` may be null, else it is
  // set to the gradients of this window.
  double run(const ActivationTape& tape, MatrixView logits, const LossTargets& targets, GradientObserver& observer,
             SmallGradients* small);

 private:
  void resize_for(int64_t rows);
  double head(const ActivationTape& tape, MatrixView logits, const LossTargets& targets, GradientObserver& observer);
  ConstMatrixView value_output(int64_t layer, const ActivationTape& tape);
  void rebuild_branch_inputs(int64_t layer, const ActivationTape& tape);
  void feed_forward(int64_t layer, const ActivationTape& tape, GradientObserver& observer, LayerGradients* small);
  void attend(int64_t layer, const ActivationTape& tape, GradientObserver& observer, LayerGradients* small);
  void split_heads(int64_t layer, const LayerActivations& kept, LayerGradients* small);
  void leave_skip(int64_t layer, const ActivationTape& tape, LayerGradients* small);
  void embed(const ActivationTape& tape, GradientObserver& observer, SmallGradients* small);
  void look_up(const ActivationTape& tape, GradientObserver& observer, SmallGradients* small);
  void layer_output(int64_t layer, const ActivationTape& tape, MatrixView out);
  float depth_scale(int64_t layer) const;

  const Model& model_;
  Backend& backend_;
  const RotaryTable& rotary_;
  int64_t rows_ = 0;
  // Of the layer at hand: u after the residual mix; u with the attention branch added; queries and keys as attention
  // takes them.
  Matrix mixed_, joined_, query_, key_;
  // Gradients: of the stream, of x0, of branches and what enters them.
  Matrix dx_, dx0_, branch_, wide_, normed_, dquery_, dkey_, dvalue_, dvalue_embedding_;
  std::vector<Matrix> dskips_;  // of the outputs of encoder layers, through the skip connections
};

}  // namespace thimble
