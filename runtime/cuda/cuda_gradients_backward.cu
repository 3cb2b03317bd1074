// cuda_gradients_backward.cu: backward.cpp on the device: the same order, the same names.
#include <numeric>

#include "runtime/cuda/cuda_gradients.cuh"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {

void CudaGradients::add_dots(const CudaFloatMatrix& a, const CudaFloatMatrix& b, double* sums) {
  dots_.add(a, b, batch_, sums, {}, stream_);
}

void CudaGradients::backward(const CudaTargets& targets, CudaGradientObserver& observer, CudaSmallGradients* small) {
  const ModelConfig& c = model_.config;
  head_backward(targets, observer);
  ops_.fill_zero(dx0_);
  if (!dvalue_embedding_.empty()) ops_.fill_zero(dvalue_embedding_);
  for (int64_t layer = c.num_layers - 1; layer >= 0; --layer) {
    if (layer < c.encoder_layers()) ops_.add_scaled(skips_[static_cast<size_t>(layer)], 1.0f, dx_);
    rebuild_branch_inputs(layer);
    feed_forward_backward(layer, observer, small);
    attend_backward(layer, observer, small);
    leave_skip(layer, small);
  }
  ops_.add_scaled(dx_, 1.0f, dx0_);  // layer 0's input is x0 too
  embed_backward(observer, small);
}

double CudaGradients::loss() const {
  std::vector<float> losses(static_cast<size_t>(batch_.rows()));
  check_cuda(cudaMemcpyAsync(losses.data(), losses_.view().data, losses.size() * sizeof(float), cudaMemcpyDeviceToHost,
                             stream_));
  stream_.wait();
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

double CudaGradients::forward_loss(const CudaTargets& targets) {
  launch_loss_backward(logits_, softcap(), targets, dlogits_, losses_.view().data, stream_);
  return loss();
}

// dx_ = gradient of the last layer's output.
void CudaGradients::head_backward(const CudaTargets& targets, CudaGradientObserver& observer) {
  launch_loss_backward(logits_, softcap(), targets, dlogits_, losses_.view().data, stream_);
  observer.on_output_gradient(head_name(model_.config), dlogits_, logits_, batch_, stream_);
  ops_.linear_backward(dlogits_, model_.head(), normed_);
  ops_.fill_zero(dx_);
  ops_.rms_norm_backward(output_, 1.0f, normed_, dx_);
}

// mixed_ = mix(x, x0); joined_ = mixed_ + attn_scale * attention branch.
void CudaGradients::rebuild_branch_inputs(int64_t layer) {
  const CudaFloatLayer& w = weights(layer);
  ops_.mix(kept(layer).input, x0_, w.mix_x.data(), w.mix_x0.data(), mixed_);
  ops_.copy(mixed_, joined_);
  ops_.add(kept(layer).attention_branch, w.attn_scale.data(), joined_);
}

// The output of a layer from what was kept of it. Overwrites mixed_ and joined_.
void CudaGradients::layer_output(int64_t layer, CudaFloatMatrix& out) {
  rebuild_branch_inputs(layer);
  ops_.copy(joined_, out);
  ops_.add(kept(layer).mlp_branch, weights(layer).mlp_scale.data(), out);
}

// x = joined + mlp_scale * down(act(up(rms(joined) * c))): dx_ becomes the gradient of joined.
void CudaGradients::feed_forward_backward(int64_t layer, CudaGradientObserver& observer, CudaSmallGradients* small) {
  const CudaFloatLayer& w = weights(layer);
  const Kept& from = kept(layer);
  const LayerNames names(layer);
  if (small) add_dots(dx_, from.mlp_branch, small->layer(layer).mlp_scale);
  ops_.scale_backward(dx_, w.mlp_scale.data(), branch_);
  observer.on_output_gradient(names.down, branch_, from.mlp_branch, batch_, stream_);
  ops_.linear_backward(branch_, w.down, wide_);
  ops_.leaky_relu_squared_backward(from.hidden, wide_);
  observer.on_output_gradient(names.up, wide_, from.hidden, batch_, stream_);
  ops_.linear_backward(wide_, w.up, normed_);
  ops_.rms_norm_backward(joined_, depth_scale(layer), normed_, dx_);
}

// joined = u + attn_scale * output(attention(rms(u) * c)) with u = mix(x, x0): dx_ becomes the gradient of x, and x0's
// share is added to dx0_.
void CudaGradients::attend_backward(int64_t layer, CudaGradientObserver& observer, CudaSmallGradients* small) {
  const CudaFloatLayer& w = weights(layer);
  const Kept& from = kept(layer);
  const LayerNames names(layer);
  if (small) add_dots(dx_, from.attention_branch, small->layer(layer).attn_scale);
  ops_.scale_backward(dx_, w.attn_scale.data(), branch_);
  observer.on_output_gradient(names.output, branch_, from.attention_branch, batch_, stream_);
  ops_.linear_backward(branch_, w.output, normed_);
  split_heads(layer, small);
  observer.on_output_gradient(names.value, dvalue_, from.value, batch_, stream_);
  observer.on_output_gradient(names.key, dkey_, from.key, batch_, stream_);
  observer.on_output_gradient(names.query, dquery_, from.query, batch_, stream_);
  if (w.value_embedding_scale != 0) {
    if (small) add_dots(dvalue_, value_embedding_, small->layer(layer).value_embedding);
    ops_.add_scaled(dvalue_, w.value_embedding_scale, dvalue_embedding_);
  }
  ops_.linear_backward(dquery_, w.query, normed_);
  ops_.linear_backward_add(dkey_, w.key, normed_);
  ops_.linear_backward_add(dvalue_, w.value, normed_);
  ops_.rms_norm_backward(mixed_, depth_scale(layer), normed_, dx_);
  if (small) {
    add_dots(dx_, from.input, small->layer(layer).mix_x);
    add_dots(dx_, x0_, small->layer(layer).mix_x0);
  }
  ops_.add(dx_, w.mix_x0.data(), dx0_);
  ops_.scale_backward(dx_, w.mix_x.data(), dx_);
}

// From the gradient of the attention's output in normed_ to those of the outputs of the query, key and value matrices.
void CudaGradients::split_heads(int64_t layer, CudaSmallGradients* small) {
  const CudaFloatLayer& w = weights(layer);
  const Kept& from = kept(layer);
  ops_.norm_and_rotate(from.query, rotation(), w.q_gain.data(), query_);
  ops_.norm_and_rotate(from.key, rotation(), nullptr, key_);
  join_value(layer);
  attention_.backward(query_, key_, value_, attention_shape(layer), batch_, normed_, dquery_, dkey_, dvalue_, stream_);
  if (small) {
    ops_.norm_and_rotate(from.query, rotation(), nullptr, query_);
    add_dots(query_, dquery_, small->layer(layer).q_gain);
  }
  ops_.norm_and_rotate_backward(from.query, rotation(), w.q_gain.data(), dquery_);
  ops_.norm_and_rotate_backward(from.key, rotation(), nullptr, dkey_);
}

// x = (1 - gate) * (weight * skip) + gate * previous, or weight * skip + previous: dx_ becomes the gradient of the
// previous layer's output, and the skip's replaces what the encoder layer had left.
void CudaGradients::leave_skip(int64_t layer, CudaSmallGradients* small) {
  const CudaFloatLayer& w = weights(layer);
  if (w.skip_weight.count() == 0) return;
  CudaFloatMatrix& skip = skips_[static_cast<size_t>(2 * model_.config.encoder_layers() - 1 - layer)];
  bool is_gated = w.skip_gate.count() > 0;
  if (small) {
    ops_.scale_backward(skip, w.skip_share.data(), branch_);
    add_dots(dx_, branch_, small->layer(layer).skip_weight);
    if (is_gated) {
      layer_output(layer - 1, branch_);
      ops_.skip_gate_direction(branch_, skip, w.skip_weight.data(), normed_);
      add_dots(dx_, normed_, small->layer(layer).skip_gate);
    }
  }
  ops_.scale_backward(dx_, w.skip_factor.data(), skip);
  if (is_gated) ops_.scale_backward(dx_, w.skip_gate.data(), dx_);
}

// x0 = smear(rms(token + bigram embedding)): from dx0_ to the tables.
void CudaGradients::embed_backward(CudaGradientObserver& observer, CudaSmallGradients* small) {
  const CudaFloatMatrix* dnormed = &dx0_;
  if (model_.config.smear_gate) {
    if (small) {
      ops_.rms_norm(embedded_, 1.0f, branch_);
      ops_.smear_gate_direction(branch_, batch_.positions, normed_);
      add_dots(dx0_, normed_, small->smear_gate());
    }
    ops_.smear_backward(dx0_, model_.smear_gate.data(), batch_.positions, normed_);
    dnormed = &normed_;
  }
  ops_.fill_zero(dx_);
  ops_.rms_norm_backward(embedded_, 1.0f, *dnormed, dx_);
  look_up_backward(observer, small);
}

// From the gradient of the embedding sum in dx_, and that of the value embedding, to the rows of the tables.
void CudaGradients::look_up_backward(CudaGradientObserver& observer, CudaSmallGradients* small) {
  const ModelConfig& c = model_.config;
  observer.on_lookup_gradient(kTokenEmbedding, tokens_, dx_, batch_, stream_);
  if (c.bigram_vocab_size > 0) {
    if (small) add_dots(dx_, bigram_branch_, small->bigram_scale());
    ops_.fill_zero(branch_);
    ops_.add_scaled(dx_, model_.bigram_scale, branch_);
    observer.on_output_gradient(kBigramProjection, branch_, bigram_branch_, batch_, stream_);
    gathered_.resize(batch_.rows(), c.bigram_dim);
    ops_.linear_backward(branch_, model_.bigram_projection, gathered_);
    observer.on_lookup_gradient(kBigramEmbedding, buckets_, gathered_, batch_, stream_);
  }
  if (!c.ve_layers.empty()) {
    observer.on_output_gradient(kValueProjection, dvalue_embedding_, value_embedding_, batch_, stream_);
    gathered_.resize(batch_.rows(), c.ve_dim);
    ops_.linear_backward(dvalue_embedding_, model_.value_projection, gathered_);
    observer.on_lookup_gradient(kValueEmbedding, tokens_, gathered_, batch_, stream_);
  }
}

}  // namespace thimble
