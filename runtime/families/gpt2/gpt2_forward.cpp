// gpt2_forward.cpp: the order of GPT-2's operations, and nothing about how any of them is computed.
#include "runtime/families/gpt2/gpt2_forward.h"

#include <algorithm>
#include <cassert>

namespace thimble {

CacheShape cache_shape(const Gpt2Config& config) { return {config.num_layers, config.model_dim, 0}; }

Gpt2Forward::Gpt2Forward(const Gpt2Model& model, Backend& backend, int64_t context_length)
    : model_(model), backend_(backend), context_length_(context_length) {
  assert(context_length <= model.config.num_positions);
}

void Gpt2Forward::resize_for(int64_t rows) {
  const Gpt2Config& c = model_.config;
  for (BackendMatrix* matrix : {&x_, &normed_, &query_, &attended_, &branch_})
    matrix->resize(backend_, rows, c.model_dim);
  key_value_.resize(backend_, rows, 2 * c.model_dim);
  wide_.resize(backend_, rows, c.mlp_dim);
}

void Gpt2Forward::norm(ConstMatrixView x, const NormWeights& weights, MatrixView y) {
  backend_.layer_norm(x, weights.weight, weights.bias, static_cast<float>(model_.config.norm_epsilon), y);
}

// y = W x + b for the y.cols outputs from `first_output` on.
void Gpt2Forward::project(ConstMatrixView x, const AffineWeights& weights, int64_t first_output, MatrixView y) {
  backend_.linear(x, weights.weight.view().block_rows(first_output, y.cols), y);
  backend_.add_bias(std::span(weights.bias).subspan(static_cast<size_t>(first_output), static_cast<size_t>(y.cols)), y);
}

void Gpt2Forward::embed(const TokenBatch& batch) {
  std::vector<int32_t> positions;
  for (int64_t p = 0; p < batch.shape.rows(); ++p)
    positions.push_back(static_cast<int32_t>(batch.shape.first_position + p % batch.shape.positions));
  backend_.gather_rows(model_.token_embedding, batch.tokens, x_);
  backend_.gather_rows(model_.position_embedding, positions, branch_);
  backend_.add_scaled(branch_, 1.0f, x_);
}

// x += Attention(norm(x)) for the needed rows.
void Gpt2Forward::attend(int64_t layer, const BatchShape& batch, KeyValueCache& cache, int64_t first_needed,
                         LinearObserver* observer) {
  const Gpt2Config& c = model_.config;
  const Gpt2Layer& w = model_.layers[static_cast<size_t>(layer)];
  const Gpt2LayerNames names(layer);
  norm(x_, w.attention_norm, normed_);
  show(observer, {&names.query_key_value, 1}, normed_);
  project(normed_, w.query_key_value, c.model_dim, key_value_);
  KeyValueView store = cache.layer(layer);
  backend_.store_rows(key_value_.view().block_cols(0, c.model_dim), batch, store.capacity, store.keys);
  backend_.store_rows(key_value_.view().block_cols(c.model_dim, c.model_dim), batch, store.capacity, store.values);

  const int64_t needed = x_.rows() - first_needed;
  const BatchShape shape{batch.sequences, batch.positions - first_needed, batch.first_position + first_needed};
  MatrixView query = query_.view().block_rows(first_needed, needed);
  MatrixView attended = attended_.view().block_rows(first_needed, needed);
  MatrixView branch = branch_.view().block_rows(first_needed, needed);
  project(normed_.view().block_rows(first_needed, needed), w.query_key_value, 0, query);
  backend_.attention(query, store, {c.num_heads, c.num_heads, c.head_dim(), false}, shape, attended);
  show(observer, {&names.attention_output, 1}, attended);
  project(attended, w.attention_output, 0, branch);
  backend_.add_branch(branch, Branch::kAttention, x_.view().block_rows(first_needed, needed));
}

// x += MLP(norm(x)) for the needed rows.
void Gpt2Forward::feed_forward(int64_t layer, int64_t first_needed, LinearObserver* observer) {
  const Gpt2Layer& w = model_.layers[static_cast<size_t>(layer)];
  const Gpt2LayerNames names(layer);
  const int64_t needed = x_.rows() - first_needed;
  MatrixView x = x_.view().block_rows(first_needed, needed);
  MatrixView normed = normed_.view().block_rows(first_needed, needed);
  MatrixView wide = wide_.view().block_rows(first_needed, needed);
  MatrixView branch = branch_.view().block_rows(first_needed, needed);
  norm(x, w.mlp_norm, normed);
  show(observer, {&names.up, 1}, normed);
  project(normed, w.up, 0, wide);
  backend_.gelu(wide);
  show(observer, {&names.down, 1}, wide);
  project(wide, w.down, 0, branch);
  backend_.add_branch(branch, Branch::kMlp, x);
}

ConstMatrixView Gpt2Forward::hidden_states(const TokenBatch& batch, KeyValueCache& cache, int64_t first_needed,
                                           LinearObserver* observer) {
  const int64_t layers = model_.config.num_layers;
  assert(batch.shape.sequences == 1 || first_needed == 0);
  assert(batch.shape.first_position + batch.shape.positions <= std::min(context_length_, cache.capacity()));
  resize_for(batch.shape.rows());
  embed(batch);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const int64_t first = layer == layers - 1 ? first_needed : 0;
    attend(layer, batch.shape, cache, first, observer);
    feed_forward(layer, first, observer);
  }
  return x_.view().block_rows(first_needed, x_.rows() - first_needed);
}

void Gpt2Forward::logits(ConstMatrixView hidden, MatrixView out, LinearObserver* observer) {
  MatrixView normed = normed_.view().block_rows(0, hidden.rows);
  norm(hidden, model_.final_norm, normed);
  const std::string name = head_name(model_.config);
  show(observer, {&name, 1}, normed);
  backend_.head(normed, model_.head(), out);
}

}  // namespace thimble
