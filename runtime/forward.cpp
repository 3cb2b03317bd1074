// forward.cpp: the order of golf-gpt's operations, and nothing about how any of them is computed.
#include "runtime/forward.h"

#include <cmath>

#include "runtime/activation_tape.h"
#include "runtime/golf_layout.h"

namespace thimble {

CacheShape cache_shape(const ModelConfig& config) { return {config.num_layers, config.kv_dim(), config.model_dim}; }

RotaryTable make_rotary_table(const ModelConfig& config, int64_t context_length) {
  int64_t half = config.rope_dims / 2;
  double base = config.rope_base_at(context_length);
  RotaryTable table{Matrix(context_length, half), Matrix(context_length, half)};
  for (int64_t p = 0; p < context_length; ++p) {
    for (int64_t k = 0; k < half; ++k) {
      double exponent = -2.0 * static_cast<double>(k) / static_cast<double>(config.rope_dims);
      double angle = static_cast<double>(p) * std::pow(base, exponent);
      table.cosine(p, k) = static_cast<float>(std::cos(angle));
      table.sine(p, k) = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

int32_t bigram_bucket(int32_t token, int32_t previous, int64_t bigram_vocab_size) {
  auto buckets = static_cast<int32_t>(bigram_vocab_size - 1);
  if (previous == TokenBatch::kNoToken) return buckets;
  // Products wrap as int32 does in the training code; the remainder is floored, never negative.
  auto mixed =
      static_cast<int32_t>((36313u * static_cast<uint32_t>(token)) ^ (27191u * static_cast<uint32_t>(previous)));
  int32_t remainder = mixed % buckets;
  return remainder < 0 ? remainder + buckets : remainder;
}

std::vector<int32_t> bigram_buckets(const TokenBatch& batch, int64_t bigram_vocab_size) {
  std::vector<int32_t> buckets;
  for (size_t p = 0; p < batch.tokens.size(); ++p)
    buckets.push_back(bigram_bucket(batch.tokens[p], batch.previous[p], bigram_vocab_size));
  return buckets;
}

ForwardPass::ForwardPass(const Model& model, Backend& backend, int64_t context_length)
    : model_(model),
      backend_(backend),
      context_length_(context_length),
      rotary_(make_rotary_table(model.config, context_length)) {}

void ForwardPass::resize_for(int64_t rows) {
  if (rows == rows_) return;
  rows_ = rows;
  const ModelConfig& c = model_.config;
  for (BackendMatrix* matrix : {&x_, &x0_, &u_, &normed_, &query_, &attended_, &branch_})
    matrix->resize(backend_, rows, c.model_dim);
  for (BackendMatrix* matrix : {&key_, &value_}) matrix->resize(backend_, rows, c.kv_dim());
  wide_.resize(backend_, rows, c.mlp_dim());
  if (c.bigram_vocab_size > 0) gathered_.resize(backend_, rows, c.bigram_dim);
  if (!c.ve_layers.empty()) {
    value_rows_.resize(backend_, rows, c.ve_dim);
    value_embedding_.resize(backend_, rows, c.kv_dim());
  }
  skips_.resize(static_cast<size_t>(c.encoder_layers()));
  for (BackendMatrix& skip : skips_) skip.resize(backend_, rows, c.model_dim);
}

void ForwardPass::keep(ConstMatrixView from, Matrix& to) {
  to.resize(from.rows, from.cols);
  backend_.copy(from, to);
}

void ForwardPass::embed(const TokenBatch& batch, KeyValueCache& cache, LinearObserver* observer, ActivationTape* tape) {
  const ModelConfig& c = model_.config;
  backend_.gather_rows(model_.token_embedding, batch.tokens, x_);
  if (c.bigram_vocab_size > 0) {
    backend_.gather_rows(model_.bigram_embedding, bigram_buckets(batch, c.bigram_vocab_size), gathered_);
    static const std::string kName = kBigramProjection;
    show(observer, {&kName, 1}, gathered_);
    backend_.linear(gathered_, model_.bigram_projection, branch_);
    if (tape) keep(branch_, tape->bigram_branch);
    backend_.add_scaled(branch_, model_.bigram_scale, x_);
  }
  if (tape) keep(x_, tape->embedded);
  if (c.smear_gate) {
    backend_.rms_norm(x_, 1.0f, u_);
    backend_.smear(u_, cache.smear_state(), model_.smear_gate, batch.shape, x_);
    for (int64_t s = 0; s < batch.shape.sequences; ++s) {
      int64_t last = (s + 1) * batch.shape.positions - 1;
      backend_.copy(u_.view().block_rows(last, 1), cache.smear_state().view().block_rows(s, 1));
    }
  } else {
    backend_.rms_norm(x_, 1.0f, x_);
  }
  backend_.copy(x_, x0_);
  if (tape) keep(x0_, tape->x0);
  if (!c.ve_layers.empty()) {
    backend_.gather_rows(model_.value_embedding, batch.tokens, value_rows_);
    static const std::string kName = kValueProjection;
    show(observer, {&kName, 1}, value_rows_);
    backend_.linear(value_rows_, model_.value_projection, value_embedding_);
    if (tape) keep(value_embedding_, tape->value_embedding);
  }
}

// u = mix(x, x0); x = u + attn_scale * Attn(rms(u) * c) for the needed rows, left in u_.
void ForwardPass::attend(int64_t layer, const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                         LinearObserver* observer, ActivationTape* tape) {
  const ModelConfig& c = model_.config;
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  LayerActivations* kept = tape ? &tape->layers[static_cast<size_t>(layer)] : nullptr;
  const LayerNames names(layer);
  float depth_scale = c.ln_scale ? 1.0f / std::sqrt(static_cast<float>(layer + 1)) : 1.0f;
  if (kept) keep(x_, kept->input);
  backend_.mix_and_norm(x_, x0_, w.mix_x, w.mix_x0, depth_scale, u_, normed_);
  const std::string sharing[] = {names.query, names.key, names.value};
  show(observer, sharing, normed_);
  backend_.linear(normed_, w.key, key_);
  backend_.linear(normed_, w.value, value_);
  if (w.value_embedding_scale != 0) backend_.add_scaled(value_embedding_, w.value_embedding_scale, value_);
  if (kept) {
    keep(key_, kept->key);
    keep(value_, kept->value);
  }
  backend_.norm_and_rotate(key_, c.head_dim(), rotary_, {}, batch.shape);
  KeyValueView store = cache.layer(layer);
  backend_.store_rows(key_, batch.shape, store.capacity, store.keys);
  backend_.store_rows(value_, batch.shape, store.capacity, store.values);

  int64_t needed = rows_ - first_needed;
  BatchShape shape = batch.shape;
  shape.positions -= first_needed;
  shape.first_position += first_needed;
  MatrixView query = query_.view().block_rows(first_needed, needed);
  MatrixView attended = attended_.view().block_rows(first_needed, needed);
  MatrixView branch = branch_.view().block_rows(first_needed, needed);
  backend_.linear(normed_.view().block_rows(first_needed, needed), w.query, query);
  if (kept) keep(query, kept->query);
  backend_.norm_and_rotate(query, c.head_dim(), rotary_, w.q_gain, shape);
  bool exclusive = layer >= c.num_layers - c.xsa_last_n;
  backend_.attention(query, store, {c.num_heads, c.num_kv_heads, c.head_dim(), exclusive}, shape, attended);
  show(observer, {&names.output, 1}, attended);
  backend_.linear(attended, w.output, branch);
  if (kept) {
    keep(attended, kept->attended);
    keep(branch, kept->attention_branch);
  }
  backend_.add_and_norm(branch, w.attn_scale, depth_scale, u_.view().block_rows(first_needed, needed),
                        normed_.view().block_rows(first_needed, needed));
}

// x = u + mlp_scale * MLP(normed) for the needed rows; then swaps so that x_ holds it.
void ForwardPass::feed_forward(int64_t layer, int64_t first_needed, LinearObserver* observer, ActivationTape* tape) {
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  const LayerNames names(layer);
  int64_t needed = rows_ - first_needed;
  MatrixView normed = normed_.view().block_rows(first_needed, needed);
  MatrixView wide = wide_.view().block_rows(first_needed, needed);
  MatrixView branch = branch_.view().block_rows(first_needed, needed);
  show(observer, {&names.up, 1}, normed);
  backend_.linear(normed, w.up, wide);
  if (tape) keep(wide, tape->layers[static_cast<size_t>(layer)].hidden);
  backend_.leaky_relu_squared(wide);
  show(observer, {&names.down, 1}, wide);
  backend_.linear(wide, w.down, branch);
  if (tape) keep(branch, tape->layers[static_cast<size_t>(layer)].mlp_branch);
  backend_.add(branch, w.mlp_scale, u_.view().block_rows(first_needed, needed));
  std::swap(x_, u_);
}

ConstMatrixView ForwardPass::hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                           LinearObserver* observer, ActivationTape* tape) {
  const ModelConfig& c = model_.config;
  assert(batch.shape.sequences == 1 || first_needed == 0);
  assert(batch.shape.first_position + batch.shape.positions <= std::min(context_length_, cache.capacity()));
  assert(!tape || (batch.shape.sequences == 1 && batch.shape.first_position == 0 && first_needed == 0));
  resize_for(batch.shape.rows());
  if (tape) {
    tape->batch = batch;
    tape->layers.resize(static_cast<size_t>(c.num_layers));
  }
  embed(batch, cache, observer, tape);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    int64_t decoder = layer - c.encoder_layers();
    if (decoder >= 0 && decoder < c.encoder_layers()) {
      const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
      backend_.add_skip(skips_[static_cast<size_t>(c.encoder_layers() - 1 - decoder)], w.skip_weight, w.skip_gate, x_);
    }
    int64_t first = layer == c.num_layers - 1 ? first_needed : 0;
    attend(layer, batch, cache, first, observer, tape);
    feed_forward(layer, first, observer, tape);
    if (decoder < 0) backend_.copy(x_, skips_[static_cast<size_t>(layer)]);
  }
  if (tape) keep(x_, tape->output);
  return x_.view().block_rows(first_needed, rows_ - first_needed);
}

void ForwardPass::logits(ConstMatrixView hidden, MatrixView out, LinearObserver* observer, ActivationTape* tape) {
  MatrixView normed = normed_.view().block_rows(0, hidden.rows);
  backend_.rms_norm(hidden, 1.0f, normed);
  const std::string name = head_name(model_.config);
  show(observer, {&name, 1}, normed);
  backend_.head(normed, model_.head(), out);
  if (tape) keep(out, tape->head_output);
  backend_.softcap(static_cast<float>(model_.config.logit_softcap), out);
}

}  // namespace thimble
