// forward.cpp: the order of golf-gpt's operations, and nothing about how any of them is computed.
#include "runtime/cpu/forward.h"

#include <cmath>

#include "runtime/families/golf/golf_layout.h"
#include "runtime/ops/activation_tape.h"

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

float ForwardPass::depth_scale(int64_t layer) const {
  return model_.config.ln_scale ? 1.0f / std::sqrt(static_cast<float>(layer + 1)) : 1.0f;
}

LayerActivations* ForwardPass::tape_of(int64_t layer) const {
  return tape_ ? &tape_->layers[static_cast<size_t>(layer)] : nullptr;
}

// u = mix(x, x0), with x after the skip connection.
void ForwardPass::open_layer(int64_t layer) {
  const ModelConfig& c = model_.config;
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  const int64_t decoder = layer - c.encoder_layers();
  if (decoder >= 0 && decoder < c.encoder_layers())
    backend_.add_skip(skips_[static_cast<size_t>(c.encoder_layers() - 1 - decoder)], w.skip_weight, w.skip_gate, x_);
  if (LayerActivations* kept = tape_of(layer)) keep(x_, kept->input);
  backend_.mix_and_norm(x_, x0_, w.mix_x, w.mix_x0, depth_scale(layer), u_, normed_);
}

// Keys and values of all rows, attention of the needed ones.
void ForwardPass::attend(int64_t layer, KeyValueCache& cache) {
  const ModelConfig& c = model_.config;
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  LayerActivations* kept = tape_of(layer);
  backend_.linear(normed_, w.key, key_);
  backend_.linear(normed_, w.value, value_);
  if (w.value_embedding_scale != 0) backend_.add_scaled(value_embedding_, w.value_embedding_scale, value_);
  if (kept) {
    keep(key_, kept->key);
    keep(value_, kept->value);
  }
  backend_.norm_and_rotate(key_, c.head_dim(), rotary_, {}, shape_);
  KeyValueView store = cache.layer(layer);
  backend_.store_rows(key_, shape_, store.capacity, store.keys);
  backend_.store_rows(value_, shape_, store.capacity, store.values);

  BatchShape shape = shape_;
  shape.positions -= first_needed_of(layer);
  shape.first_position += first_needed_of(layer);
  MatrixView query = needed_rows(query_, layer), attended = needed_rows(attended_, layer);
  backend_.linear(needed_rows(normed_, layer), w.query, query);
  if (kept) keep(query, kept->query);
  backend_.norm_and_rotate(query, c.head_dim(), rotary_, w.q_gain, shape);
  bool exclusive = layer >= c.num_layers - c.xsa_last_n;
  backend_.attention(query, store, {c.num_heads, c.num_kv_heads, c.head_dim(), exclusive}, shape, attended);
}

// x = u + attn_scale * Attn(rms(u) * c) for the needed rows, left in u_.
void ForwardPass::add_attention(int64_t layer) {
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  MatrixView attended = needed_rows(attended_, layer), branch = needed_rows(branch_, layer);
  backend_.linear(attended, w.output, branch);
  if (LayerActivations* kept = tape_of(layer)) {
    keep(attended, kept->attended);
    keep(branch, kept->attention_branch);
  }
  backend_.add_and_norm(branch, w.attn_scale, depth_scale(layer), needed_rows(u_, layer), needed_rows(normed_, layer));
}

void ForwardPass::widen(int64_t layer) {
  MatrixView wide = needed_rows(wide_, layer);
  backend_.linear(needed_rows(normed_, layer), model_.layers[static_cast<size_t>(layer)].up, wide);
  if (LayerActivations* kept = tape_of(layer)) keep(wide, kept->hidden);
  backend_.leaky_relu_squared(wide);
}

// x = u + mlp_scale * MLP(normed) for the needed rows; then swaps so that x_ holds it.
void ForwardPass::end_layer(int64_t layer) {
  const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
  MatrixView branch = needed_rows(branch_, layer);
  backend_.linear(needed_rows(wide_, layer), w.down, branch);
  if (LayerActivations* kept = tape_of(layer)) keep(branch, kept->mlp_branch);
  backend_.add(branch, w.mlp_scale, needed_rows(u_, layer));
  std::swap(x_, u_);
  if (layer < model_.config.encoder_layers()) backend_.copy(x_, skips_[static_cast<size_t>(layer)]);
}

void ForwardPass::begin(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed, LinearObserver* observer,
                        ActivationTape* tape) {
  assert(batch.shape.sequences == 1 || first_needed == 0);
  assert(batch.shape.first_position + batch.shape.positions <= std::min(context_length_, cache.capacity()));
  assert(!tape || (batch.shape.sequences == 1 && batch.shape.first_position == 0 && first_needed == 0));
  shape_ = batch.shape;
  first_needed_ = first_needed;
  tape_ = tape;
  resize_for(batch.shape.rows());
  if (tape) {
    tape->batch = batch;
    tape->layers.resize(static_cast<size_t>(model_.config.num_layers));
  }
  embed(batch, cache, observer, tape);
  open_layer(0);
}

void ForwardPass::advance(int64_t input, KeyValueCache& cache) {
  const int64_t layer = input / kInputsOfLayer;
  switch (input % kInputsOfLayer) {
    case 0: return attend(layer, cache);
    case 1: return add_attention(layer);
    case 2: return widen(layer);
    default: end_layer(layer);
  }
  if (layer + 1 < model_.config.num_layers) open_layer(layer + 1);
}

void ForwardPass::show_input(int64_t input, LinearObserver& observer) {
  const int64_t layer = input / kInputsOfLayer;
  const LayerNames names(layer);
  const std::string sharing[] = {names.query, names.key, names.value};
  switch (input % kInputsOfLayer) {
    case 0: return show(&observer, sharing, normed_);
    case 1: return show(&observer, {&names.output, 1}, needed_rows(attended_, layer));
    case 2: return show(&observer, {&names.up, 1}, needed_rows(normed_, layer));
    default: return show(&observer, {&names.down, 1}, needed_rows(wide_, layer));
  }
}

ConstMatrixView ForwardPass::hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                           LinearObserver* observer, ActivationTape* tape) {
  begin(batch, cache, first_needed, observer, tape);
  for (int64_t input = 0; input < kInputsOfLayer * model_.config.num_layers; ++input) {
    if (observer) show_input(input, *observer);
    advance(input, cache);
  }
  if (tape) keep(x_, tape->output);
  tape_ = nullptr;
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
