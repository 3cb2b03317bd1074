// cuda_gradients.cu: the forward pass, which keeps what the backward pass (cuda_gradients_backward.cu) needs. The order
// of operations is forward.cpp's.
#include "runtime/cuda/cuda_gradients.cuh"

#include <algorithm>
#include <cmath>

#include "runtime/cuda/cuda_model.cuh"

namespace thimble {

CudaGradients::CudaGradients(const CudaFloatModel& model, int64_t context_length)
    : model_(model),
      context_length_(context_length),
      ops_(stream_),
      angles_(make_cuda_rotary_table(model.config, context_length)) {}

float CudaGradients::depth_scale(int64_t layer) const {
  return model_.config.ln_scale ? 1.0f / std::sqrt(static_cast<float>(layer + 1)) : 1.0f;
}

AttentionShape CudaGradients::attention_shape(int64_t layer) const {
  const ModelConfig& c = model_.config;
  return {c.num_heads, c.num_kv_heads, c.head_dim(), layer >= c.num_layers - c.xsa_last_n};
}

HeadRotation CudaGradients::rotation() const {
  return {model_.config.head_dim(), batch_.positions, angles_.data(), model_.config.rope_dims / 2};
}

void CudaGradients::resize_for(const BatchShape& batch) {
  batch_ = batch;
  const ModelConfig& c = model_.config;
  int64_t rows = batch.rows();
  kept_.resize(static_cast<size_t>(c.num_layers));
  skips_.resize(static_cast<size_t>(c.encoder_layers()));
  for (CudaFloatMatrix* matrix : {&embedded_, &x0_, &output_, &head_input_, &x_, &mixed_, &joined_, &query_, &normed_,
                                  &branch_, &dx_, &dx0_, &dquery_})
    matrix->resize(rows, c.model_dim);
  for (CudaFloatMatrix* matrix : {&key_, &value_, &dkey_, &dvalue_}) matrix->resize(rows, c.kv_dim());
  for (Kept& of_layer : kept_) {
    for (CudaFloatMatrix* matrix : {&of_layer.input, &of_layer.query, &of_layer.attention_branch, &of_layer.mlp_branch})
      matrix->resize(rows, c.model_dim);
    for (CudaFloatMatrix* matrix : {&of_layer.key, &of_layer.value}) matrix->resize(rows, c.kv_dim());
    of_layer.hidden.resize(rows, c.mlp_dim());
  }
  for (CudaFloatMatrix& skip : skips_) skip.resize(rows, c.model_dim);
  wide_.resize(rows, c.mlp_dim());
  gathered_.resize(rows, std::max(c.bigram_dim, c.ve_dim));
  if (c.bigram_vocab_size > 0) bigram_branch_.resize(rows, c.model_dim);
  if (!c.ve_layers.empty())
    for (CudaFloatMatrix* matrix : {&value_embedding_, &dvalue_embedding_}) matrix->resize(rows, c.kv_dim());
  for (CudaFloatMatrix* matrix : {&logits_, &dlogits_}) matrix->resize(rows, c.vocab_size);
  losses_.resize(rows, 1);
}

void CudaGradients::upload(const std::vector<int32_t>& host, DeviceArray<int32_t>& device) {
  device.reserve(static_cast<int64_t>(host.size()));
  check_cuda(
      cudaMemcpyAsync(device.data(), host.data(), host.size() * sizeof(int32_t), cudaMemcpyHostToDevice, stream_));
  stream_.wait();  // the vector may change after this
}

void CudaGradients::embed(std::span<const uint16_t> tokens, int64_t stride) {
  const ModelConfig& c = model_.config;
  tokens_.clear();
  buckets_.clear();
  for (int64_t s = 0; s < batch_.sequences; ++s) {
    TokenBatch window =
        window_batch(tokens.subspan(static_cast<size_t>(s * stride), static_cast<size_t>(batch_.positions)));
    tokens_.insert(tokens_.end(), window.tokens.begin(), window.tokens.end());
    if (c.bigram_vocab_size == 0) continue;
    std::vector<int32_t> buckets = bigram_buckets(window, c.bigram_vocab_size);
    buckets_.insert(buckets_.end(), buckets.begin(), buckets.end());
  }
  upload(tokens_, device_tokens_);
  ops_.gather_rows(model_.token_embedding, device_tokens_.data(), embedded_);
  if (c.bigram_vocab_size > 0) {
    upload(buckets_, device_buckets_);
    gathered_.resize(batch_.rows(), c.bigram_dim);
    ops_.gather_rows(model_.bigram_embedding, device_buckets_.data(), gathered_);
    ops_.linear(gathered_, model_.bigram_projection, bigram_branch_);
    ops_.add_scaled(bigram_branch_, model_.bigram_scale, embedded_);
  }
  if (c.smear_gate) {
    ops_.rms_norm(embedded_, 1.0f, normed_);
    ops_.smear(normed_, model_.smear_gate.data(), batch_.positions, x0_);
  } else {
    ops_.rms_norm(embedded_, 1.0f, x0_);
  }
  ops_.copy(x0_, x_);
  if (!c.ve_layers.empty()) {
    gathered_.resize(batch_.rows(), c.ve_dim);
    ops_.gather_rows(model_.value_embedding, device_tokens_.data(), gathered_);
    ops_.linear(gathered_, model_.value_projection, value_embedding_);
  }
}

// value_ = the layer's values with the value embedding added.
void CudaGradients::join_value(int64_t layer) {
  ops_.copy(kept(layer).value, value_);
  if (weights(layer).value_embedding_scale != 0)
    ops_.add_scaled(value_embedding_, weights(layer).value_embedding_scale, value_);
}

// u = mix(x, x0); mixed_ = u + attn_scale * Attn(rms(u) * c).
void CudaGradients::attend(int64_t layer) {
  const CudaFloatLayer& w = weights(layer);
  Kept& to = kept(layer);
  ops_.copy(x_, to.input);
  ops_.mix(x_, x0_, w.mix_x.data(), w.mix_x0.data(), mixed_);
  ops_.rms_norm(mixed_, depth_scale(layer), normed_);
  ops_.linear(normed_, w.query, to.query);
  ops_.linear(normed_, w.key, to.key);
  ops_.linear(normed_, w.value, to.value);
  join_value(layer);
  ops_.norm_and_rotate(to.query, rotation(), w.q_gain.data(), query_);
  ops_.norm_and_rotate(to.key, rotation(), nullptr, key_);
  attention_.forward(query_, key_, value_, attention_shape(layer), batch_, normed_, stream_);
  ops_.linear(normed_, w.output, to.attention_branch);
  ops_.add(to.attention_branch, w.attn_scale.data(), mixed_);
}

// x = mixed_ + mlp_scale * MLP(rms(mixed_) * c).
void CudaGradients::feed_forward(int64_t layer) {
  const CudaFloatLayer& w = weights(layer);
  Kept& to = kept(layer);
  ops_.rms_norm(mixed_, depth_scale(layer), normed_);
  ops_.linear(normed_, w.up, to.hidden);
  ops_.leaky_relu_squared(to.hidden, wide_);
  ops_.linear(wide_, w.down, to.mlp_branch);
  ops_.copy(mixed_, x_);
  ops_.add(to.mlp_branch, w.mlp_scale.data(), x_);
}

void CudaGradients::forward(std::span<const uint16_t> tokens, int64_t stride, const BatchShape& batch) {
  const ModelConfig& c = model_.config;
  assert(batch.first_position == 0 && batch.positions <= context_length_);
  resize_for(batch);
  embed(tokens, stride);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    int64_t decoder = layer - c.encoder_layers();
    if (decoder >= 0 && decoder < c.encoder_layers()) {
      const CudaFloatLayer& w = weights(layer);
      ops_.add_skip(skips_[static_cast<size_t>(c.encoder_layers() - 1 - decoder)], w.skip_weight.data(),
                    w.skip_gate.data(), x_);
    }
    attend(layer);
    feed_forward(layer);
    if (decoder < 0) ops_.copy(x_, skips_[static_cast<size_t>(layer)]);
  }
  ops_.copy(x_, output_);
  ops_.rms_norm(output_, 1.0f, head_input_);
  ops_.linear(head_input_, model_.head(), logits_);
}

void CudaGradients::logits(CudaView out) const { ops_.softcap(logits_, softcap(), out); }

}  // namespace thimble
