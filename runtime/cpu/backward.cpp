// backward.cpp: forward.cpp in reverse: the order of the operations, and nothing about how any of them is computed.
#include "runtime/cpu/backward.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>

#include "runtime/cpu/forward.h"
#include "runtime/cpu/gradient_ops.h"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

std::vector<float> products(std::span<const float> a, std::span<const float> b) {
  std::vector<float> c;
  for (size_t i = 0; i < a.size(); ++i) c.push_back(a[i] * b[i]);
  return c;
}

std::vector<float> one_minus(std::span<const float> a) {
  std::vector<float> c;
  for (float value : a) c.push_back(1.0f - value);
  return c;
}

double sum_of(std::span<const double> values) { return std::accumulate(values.begin(), values.end(), 0.0); }

}  // namespace

BackwardPass::BackwardPass(const Model& model, Backend& backend, const RotaryTable& rotary)
    : model_(model), backend_(backend), rotary_(rotary) {}

void BackwardPass::resize_for(int64_t rows) {
  if (rows == rows_) return;
  rows_ = rows;
  const ModelConfig& c = model_.config;
  for (Matrix* matrix : {&mixed_, &joined_, &query_, &dx_, &dx0_, &branch_, &normed_, &dquery_})
    matrix->resize(rows, c.model_dim);
  for (Matrix* matrix : {&key_, &dkey_, &dvalue_, &dvalue_embedding_}) matrix->resize(rows, c.kv_dim());
  wide_.resize(rows, c.mlp_dim());
  dskips_.assign(static_cast<size_t>(c.encoder_layers()), Matrix(rows, c.model_dim));
}

float BackwardPass::depth_scale(int64_t layer) const {
  return model_.config.ln_scale ? 1.0f / std::sqrt(static_cast<float>(layer + 1)) : 1.0f;
}

double BackwardPass::run(const ActivationTape& tape, MatrixView logits, const LossTargets& targets,
                         GradientObserver& observer, SmallGradients* small) {
  const ModelConfig& c = model_.config;
  assert(logits.rows == tape.output.rows());
  resize_for(logits.rows);
  if (small) {
    *small = {};
    small->layers.resize(static_cast<size_t>(c.num_layers));
  }
  double loss = head(tape, logits, targets, observer);
  for (Matrix* sum : {&dx0_, &dvalue_embedding_}) std::ranges::fill(sum->values(), 0.0f);
  for (int64_t layer = c.num_layers - 1; layer >= 0; --layer) {
    LayerGradients* gradients = small ? &small->layers[static_cast<size_t>(layer)] : nullptr;
    if (layer < c.encoder_layers()) backend_.add_scaled(dskips_[static_cast<size_t>(layer)], 1.0f, dx_);
    rebuild_branch_inputs(layer, tape);
    feed_forward(layer, tape, observer, gradients);
    attend(layer, tape, observer, gradients);
    leave_skip(layer, tape, gradients);
  }
  backend_.add_scaled(dx_, 1.0f, dx0_);  // layer 0's input is x0 too
  embed(tape, observer, small);
  return loss;
}

// dx_ = gradient of the last layer's output.
double BackwardPass::head(const ActivationTape& tape, MatrixView logits, const LossTargets& targets,
                          GradientObserver& observer) {
  auto cap = static_cast<float>(model_.config.logit_softcap);
  double loss = targets.tokens.empty() ? divergence_backward(logits, targets.logits, cap)
                                       : nll_backward(logits, targets.tokens, cap);
  observer.on_output_gradient(head_name(model_.config), logits, tape.head_output);
  linear_backward(logits, model_.head(), normed_);
  std::ranges::fill(dx_.values(), 0.0f);
  rms_norm_backward(tape.output, 1.0f, normed_, dx_);
  return loss;
}

// mixed_ = mix(x, x0); joined_ = mixed_ + attn_scale * attention branch. Overwrites normed_.
void BackwardPass::rebuild_branch_inputs(int64_t layer, const ActivationTape& tape) {
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  const LayerActivations& kept = tape.layers[static_cast<size_t>(layer)];
  backend_.mix_and_norm(kept.input, tape.x0, w.mix_x, w.mix_x0, 1.0f, mixed_, normed_);
  backend_.copy(mixed_, joined_);
  backend_.add(kept.attention_branch, w.attn_scale, joined_);
}

// x = joined + mlp_scale * down(act(up(rms(joined) * c))): dx_ becomes the gradient of joined.
void BackwardPass::feed_forward(int64_t layer, const ActivationTape& tape, GradientObserver& observer,
                                LayerGradients* small) {
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  const LayerActivations& kept = tape.layers[static_cast<size_t>(layer)];
  const LayerNames names(layer);
  if (small) small->mlp_scale = column_dots(dx_, kept.mlp_branch);
  scale_backward(dx_, w.mlp_scale, branch_);
  observer.on_output_gradient(names.down, branch_, kept.mlp_branch);
  linear_backward(branch_, w.down, wide_);
  leaky_relu_squared_backward(kept.hidden, wide_);
  observer.on_output_gradient(names.up, wide_, kept.hidden);
  linear_backward(wide_, w.up, normed_);
  rms_norm_backward(joined_, depth_scale(layer), normed_, dx_);
}

// joined = u + attn_scale * output(attention(rms(u) * c)) with u = mix(x, x0): dx_ becomes the gradient of x, and x0's
// share is added to dx0_.
void BackwardPass::attend(int64_t layer, const ActivationTape& tape, GradientObserver& observer,
                          LayerGradients* small) {
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  const LayerActivations& kept = tape.layers[static_cast<size_t>(layer)];
  const LayerNames names(layer);
  if (small) small->attn_scale = column_dots(dx_, kept.attention_branch);
  scale_backward(dx_, w.attn_scale, branch_);
  observer.on_output_gradient(names.output, branch_, kept.attention_branch);
  linear_backward(branch_, w.output, normed_);
  split_heads(layer, kept, small);
  observer.on_output_gradient(names.value, dvalue_, value_output(layer, tape));
  observer.on_output_gradient(names.key, dkey_, kept.key);
  observer.on_output_gradient(names.query, dquery_, kept.query);
  if (w.value_embedding_scale != 0) {
    if (small) small->value_embedding_scale = sum_of(column_dots(dvalue_, tape.value_embedding));
    backend_.add_scaled(dvalue_, w.value_embedding_scale, dvalue_embedding_);
  }
  linear_backward(dquery_, w.query, normed_);
  linear_backward_add(dkey_, w.key, normed_);
  linear_backward_add(dvalue_, w.value, normed_);
  rms_norm_backward(mixed_, depth_scale(layer), normed_, dx_);
  if (small) {
    small->mix_x = column_dots(dx_, kept.input);
    small->mix_x0 = column_dots(dx_, tape.x0);
  }
  backend_.add(dx_, w.mix_x0, dx0_);
  scale_backward(dx_, w.mix_x, dx_);
}

// What the value matrix gave, without the value embedding. Overwrites key_.
ConstMatrixView BackwardPass::value_output(int64_t layer, const ActivationTape& tape) {
  const Matrix& joined = tape.layers[static_cast<size_t>(layer)].value;
  const float scale = model_.layers[static_cast<size_t>(layer)].value_embedding_scale;
  if (scale == 0) return joined;
  backend_.copy(joined, key_);
  backend_.add_scaled(tape.value_embedding, -scale, key_);
  return key_;
}

// From the gradient of the attention's output in normed_ to those of the outputs of the query, key and value matrices.
void BackwardPass::split_heads(int64_t layer, const LayerActivations& kept, LayerGradients* small) {
  const ModelConfig& c = model_.config;
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  const BatchShape window{1, rows_, 0};
  backend_.copy(kept.query, query_);
  backend_.norm_and_rotate(query_, c.head_dim(), rotary_, w.q_gain, window);
  backend_.copy(kept.key, key_);
  backend_.norm_and_rotate(key_, c.head_dim(), rotary_, {}, window);
  bool exclusive = layer >= c.num_layers - c.xsa_last_n;
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim()));
  attention_backward(query_, key_, kept.value, {c.num_heads, c.num_kv_heads, c.head_dim(), scale, exclusive, 0},
                     normed_, dquery_, dkey_, dvalue_);
  if (small) {
    backend_.copy(kept.query, query_);
    backend_.norm_and_rotate(query_, c.head_dim(), rotary_, {}, window);
    std::vector<double> dots = column_dots(query_, dquery_);
    for (int64_t h = 0; h < c.num_heads; ++h)
      small->q_gain.push_back(
          sum_of(std::span(dots).subspan(static_cast<size_t>(h * c.head_dim()), static_cast<size_t>(c.head_dim()))));
  }
  norm_and_rotate_backward(kept.query, c.head_dim(), rotary_, w.q_gain, dquery_);
  norm_and_rotate_backward(kept.key, c.head_dim(), rotary_, {}, dkey_);
}

// x = (1 - gate) * (weight * skip) + gate * previous, or weight * skip + previous: dx_ becomes the gradient of the
// previous layer's output, and the skip's is kept until the pass gets to the layer that it left from.
void BackwardPass::leave_skip(int64_t layer, const ActivationTape& tape, LayerGradients* small) {
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  if (w.skip_weight.empty()) return;
  int64_t encoder = 2 * model_.config.encoder_layers() - 1 - layer;
  bool is_gated = !w.skip_gate.empty();
  std::vector<float> kept_share = is_gated ? one_minus(w.skip_gate) : std::vector<float>(w.skip_weight.size(), 1.0f);
  if (small) {
    layer_output(encoder, tape, branch_);
    small->skip_weight = column_dots(dx_, branch_);
    for (size_t i = 0; i < kept_share.size(); ++i) small->skip_weight[i] *= static_cast<double>(kept_share[i]);
    if (is_gated) {
      std::vector<double> along_skip = column_dots(dx_, branch_);
      layer_output(layer - 1, tape, branch_);
      small->skip_gate = column_dots(dx_, branch_);
      for (size_t i = 0; i < along_skip.size(); ++i)
        small->skip_gate[i] -= static_cast<double>(w.skip_weight[i]) * along_skip[i];
    }
  }
  scale_backward(dx_, products(w.skip_weight, kept_share), dskips_[static_cast<size_t>(encoder)]);
  if (is_gated) scale_backward(dx_, w.skip_gate, dx_);
}

// The output of a layer from what was kept of it. Overwrites mixed_, joined_ and normed_.
void BackwardPass::layer_output(int64_t layer, const ActivationTape& tape, MatrixView out) {
  rebuild_branch_inputs(layer, tape);
  backend_.copy(joined_, out);
  backend_.add(tape.layers[static_cast<size_t>(layer)].mlp_branch, model_.layers[static_cast<size_t>(layer)].mlp_scale,
               out);
}

// x0 = smear(rms(token + bigram embedding)): from dx0_ to the tables.
void BackwardPass::embed(const ActivationTape& tape, GradientObserver& observer, SmallGradients* small) {
  ConstMatrixView dnormed = dx0_;
  if (model_.config.smear_gate) {
    if (small) {
      // d/dgate = previous - own.
      Matrix& own = branch_;
      backend_.rms_norm(tape.embedded, 1.0f, own);
      std::vector<double> along_own = column_dots(dx0_, own);
      small->smear_gate = column_dots(dx0_.view().block_rows(1, rows_ - 1), own.view().block_rows(0, rows_ - 1));
      for (size_t i = 0; i < along_own.size(); ++i) small->smear_gate[i] -= along_own[i];
    }
    smear_backward(dx0_, model_.smear_gate, normed_);
    dnormed = normed_;
  }
  std::ranges::fill(dx_.values(), 0.0f);
  rms_norm_backward(tape.embedded, 1.0f, dnormed, dx_);
  look_up(tape, observer, small);
}

// From the gradient of the embedding sum in dx_, and that of the value embedding, to the rows of the tables.
void BackwardPass::look_up(const ActivationTape& tape, GradientObserver& observer, SmallGradients* small) {
  const ModelConfig& c = model_.config;
  const TokenBatch& batch = tape.batch;
  observer.on_lookup_gradient(kTokenEmbedding, batch.tokens, dx_);
  if (c.bigram_vocab_size > 0) {
    if (small) small->bigram_scale = sum_of(column_dots(dx_, tape.bigram_branch));
    std::ranges::fill(branch_.values(), 0.0f);
    backend_.add_scaled(dx_, model_.bigram_scale, branch_);
    observer.on_output_gradient(kBigramProjection, branch_, tape.bigram_branch);
    Matrix rows(rows_, c.bigram_dim);
    linear_backward(branch_, model_.bigram_projection, rows);
    observer.on_lookup_gradient(kBigramEmbedding, bigram_buckets(batch, c.bigram_vocab_size), rows);
  }
  if (!c.ve_layers.empty()) {
    observer.on_output_gradient(kValueProjection, dvalue_embedding_, tape.value_embedding);
    Matrix rows(rows_, c.ve_dim);
    linear_backward(dvalue_embedding_, model_.value_projection, rows);
    observer.on_lookup_gradient(kValueEmbedding, batch.tokens, rows);
  }
}

}  // namespace thimble
