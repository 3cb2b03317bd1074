// cuda_forward.cu: the order of the fused operations.
#include "runtime/cuda/cuda_forward.cuh"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "runtime/cuda/kernels/cuda_gemm_sm90.cuh"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {

template <typename T>
CudaKeyValueCache<T>::CudaKeyValueCache(const CudaModel<T>& model, int64_t sequences, int64_t positions,
                                        int layer_count)
    : capacity(positions),
      layer_elements(sequences * positions * 2 * model.config.num_kv_heads * model.head_width),
      layers(layer_count) {
  data = DeviceArray<T>(layer_elements * layers);
  // Kernels read whole tiles: what no position has written must be finite, for its weight is 0.
  data.fill_zero();
}

template <typename T>
CudaForward<T>::CudaForward(const CudaModel<T>& model, int64_t context, int64_t max_rows, int64_t max_needed,
                            bool stepping)
    : model_(model),
      max_rows_(max_rows),
      max_needed_(max_needed),
      stepping_(stepping),
      sm90_(sizeof(T) == 2 && !stepping && has_sm90_kernels()),
      parts_(divide_up(model.width, stepping ? kStepColumns
                                    : sm90_  ? kSm90Columns
                                             : kWindowColumns)),
      rotary_(make_cuda_rotary_table(model.config, context)),
      half_(static_cast<int>(model.config.rope_dims / 2)),
      x0_(max_rows * model.width),
      u_(max_rows * model.width),
      query_(max_rows * model.config.num_heads * model.head_width),
      wide_(max_rows * model.mlp_width),
      needed_u_(max_needed * model.width),
      squares_(max_rows * parts_),
      needed_squares_(max_needed * parts_),
      target_logits_(max_needed),
      log_sums_(max_needed),
      loss_parts_(max_needed * divide_up(model.token_embedding.rows, kStepColumns)) {
  for (int64_t i = 0; i < model.config.encoder_layers(); ++i) skips_.emplace_back(max_rows * model.width);
}

template <typename T>
template <typename Epilogue>
void CudaForward<T>::multiply(const T* a, int64_t a_stride, const T* b, int64_t rows, int columns, int depth,
                              const Epilogue& epilogue, cudaStream_t stream) {
  GemmOperands<T> operands{a, a_stride, b, rows, columns, depth};
  if (stepping_) return launch_gemm<T, 1, kStepColumns, 4>(operands, epilogue, stream);
  multiply_window(operands, epilogue, stream);
}

template <typename T>
template <typename Epilogue>
void CudaForward<T>::multiply_window(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) {
  if constexpr (sizeof(T) == 2) {
    if (sm90_) return launch_gemm_sm90(operands, epilogue, stream);
  }
  // fp32 keeps twice the operands' bytes in shared memory, and its products in as many registers.
  launch_gemm<T, sizeof(T) == 4 ? 1 : 2, kWindowColumns, 3>(operands, epilogue, stream);
}

// Few rows and fp32 logits: small tiles on every device.
template <typename T>
template <typename Epilogue>
void CudaForward<T>::multiply_head(const Epilogue& epilogue, cudaStream_t stream) {
  const CudaMatrix<T>& head = model_.head();
  GemmOperands<T> operands{rows_.u, model_.width, head.data.data(), rows_.count, head.rows, model_.width};
  launch_gemm<T, 1, kStepColumns, 4>(operands, epilogue, stream);
}

template <typename T>
RowNorm CudaForward<T>::norm_of(const Rows& rows, float c) const {
  return {rows.squares, 1.0f / static_cast<float>(model_.config.model_dim), c};
}

template <typename T>
float CudaForward<T>::depth_scale(int layer) const {
  return model_.config.ln_scale ? 1.0f / std::sqrt(static_cast<float>(layer + 1)) : 1.0f;
}

template <typename T>
template <int kHead, bool kShared>
void CudaForward<T>::project_heads(int layer, const CudaBatch& batch, const CudaKeyValueCache<T>& cache,
                                   const Rows& rows, int first_column, int columns, cudaStream_t stream) {
  const CudaLayer<T>& w = model_.layers[static_cast<size_t>(layer)];
  const ModelConfig& c = model_.config;
  QkvEpilogue<T, kHead, kShared> epilogue{norm_of(rows, depth_scale(layer)),
                                          {batch.first, rows.offset, rows.positions},
                                          query_.data(),
                                          cache.layer(layer),
                                          cache.capacity,
                                          static_cast<int>(c.num_heads),
                                          static_cast<int>(c.num_kv_heads),
                                          first_column,
                                          1.0f / static_cast<float>(c.head_dim()),
                                          rotary_.data(),
                                          half_,
                                          w.query_scale.data(),
                                          w.value_embedding_scale != 0 ? model_.value_table.data.data() : nullptr,
                                          w.value_embedding_scale,
                                          batch.tokens.data,
                                          batch.tokens.stride,
                                          shared_,
                                          shared_heads()};
  const T* weights = w.qkv.data.data() + static_cast<int64_t>(first_column) * model_.width;
  GemmOperands<T> operands{rows.u, model_.width, weights, rows.count, columns, model_.width};
  if constexpr (!kShared) {
    if (stepping_) return launch_gemm<T, 1, std::max(kHead, 64), 3>(operands, epilogue, stream);  // heads stay whole
  }
  multiply_window(operands, epilogue, stream);
}

template <typename T>
void CudaForward<T>::project(int layer, const CudaBatch& batch, const CudaKeyValueCache<T>& cache, const Rows& rows,
                             int first_column, int columns, cudaStream_t stream) {
  auto with_heads = [&]<int kHead>(std::integral_constant<int, kHead>) {
    if (layer == 0 && shared_.exist())
      project_heads<kHead, true>(layer, batch, cache, rows, first_column, columns, stream);
    else
      project_heads<kHead, false>(layer, batch, cache, rows, first_column, columns, stream);
  };
  if (model_.head_width == 32) return with_heads(std::integral_constant<int, 32>());
  if (model_.head_width == 64) return with_heads(std::integral_constant<int, 64>());
  with_heads(std::integral_constant<int, 128>());
}

// Rows that windows share are projected once; their rotation differs from window to window.
template <typename T>
void CudaForward<T>::project_shared(const CudaBatch& batch, const CudaKeyValueCache<T>& cache, const Rows& rows,
                                    cudaStream_t stream) {
  const ModelConfig& c = model_.config;
  auto heads = static_cast<int>(c.num_heads), kv_heads = static_cast<int>(c.num_kv_heads);
  Rows distinct = rows;
  distinct.u = shared_u();
  distinct.count = shared_.count();
  project(0, batch, cache, distinct, 0, (heads + 2 * kv_heads) * model_.head_width, stream);
  SharedProjections<T> projections{shared_,  shared_u(),        shared_heads(), model_.width, heads,
                                   kv_heads, model_.head_width, rotary_.data(), half_};
  launch_spread(projections, rows.u, query_.data(), cache.layer(0), cache.capacity, stream);
}

// Windows that overlap, at even distances; where sharing pays and the buffers of the MLP, free until the first layer's,
// hold the distinct rows.
template <typename T>
SharedRows CudaForward<T>::shared_rows(const CudaBatch& batch) const {
  const ModelConfig& c = model_.config;
  SharedRows shared{batch.sequences, batch.positions, static_cast<int>(batch.tokens.stride)};
  int64_t rows = static_cast<int64_t>(batch.sequences) * batch.positions;
  int64_t columns = (c.num_heads + 2 * c.num_kv_heads) * model_.head_width;
  int64_t distinct_bytes =
      model_.width * static_cast<int64_t>(sizeof(T)) + columns * static_cast<int64_t>(sizeof(float));
  bool overlap = batch.sequences > 1 && batch.tokens.stride > 0 && batch.tokens.stride < batch.positions;
  bool fits = 2 * shared.count() <= rows && shared.count() * distinct_bytes <= static_cast<int64_t>(wide_.bytes());
  bool whole = c.num_layers > 1 || batch.needed == batch.positions;  // the first layer keeps all its rows
  return overlap && batch.positions > SharedRows::kFirstRows && fits && whole ? shared : SharedRows{};
}

template <typename T>
void CudaForward<T>::launch_attention(const AttentionOperands<T>& operands, cudaStream_t stream) {
  if (stepping_) return launch_step_attention(operands, model_.head_width, stream);
  if constexpr (sizeof(T) == 2) {
    if (sm90_ && model_.head_width == kSm90HeadWidth && operands.largest_score <= kSm90LargestScore)
      return launch_window_attention_sm90(operands, stream);
  }
  launch_window_attention(operands, model_.head_width, stream);
}

template <typename T>
void CudaForward<T>::project_layer(int layer, const CudaKeyValueCache<T>& cache, cudaStream_t stream) {
  const ModelConfig& c = model_.config;
  auto query_columns = static_cast<int>(c.num_heads) * model_.head_width;
  auto kv_columns = 2 * static_cast<int>(c.num_kv_heads) * model_.head_width;
  if (layer == 0 && shared_.exist()) return project_shared(batch_, cache, rows_, stream);
  if (layer + 1 < c.num_layers || batch_.needed == batch_.positions)
    return project(layer, batch_, cache, rows_, 0, query_columns + kv_columns, stream);
  // In the last layer, rows that nobody needs give their keys and values to the others, and no more.
  project(layer, batch_, cache, rows_, query_columns, kv_columns, stream);
  Rows last{needed_u_.data(),
            {needed_squares_.data(), parts_, max_needed_},
            static_cast<int64_t>(batch_.sequences) * batch_.needed,
            batch_.needed,
            batch_.positions - batch_.needed};
  launch_take_last_rows(rows_.u, rows_.squares, batch_.sequences, batch_.positions, batch_.needed, model_.width, last.u,
                        last.squares, stream);
  rows_ = last;
  project(layer, batch_, cache, rows_, 0, query_columns, stream);
}

template <typename T>
void CudaForward<T>::attend(int layer, const CudaKeyValueCache<T>& cache, cudaStream_t stream) {
  const ModelConfig& c = model_.config;
  launch_attention({query_.data(), cache.layer(layer), cache.capacity, batch_.sequences, rows_.positions, batch_.first,
                    rows_.offset, static_cast<int>(c.num_heads), static_cast<int>(c.num_kv_heads),
                    model_.layers[static_cast<size_t>(layer)].largest_score, layer >= c.num_layers - c.xsa_last_n},
                   stream);
}

template <typename T>
void CudaForward<T>::add_attention(int layer, cudaStream_t stream) {
  const CudaLayer<T>& w = model_.layers[static_cast<size_t>(layer)];
  const int query_columns = static_cast<int>(model_.config.num_heads) * model_.head_width;
  AttentionResidualEpilogue<T> epilogue{rows_.u, model_.width, w.attn_scale.data(), rows_.squares, rows_.count};
  multiply(query_.data(), query_columns, w.output.data.data(), rows_.count, model_.width, query_columns, epilogue,
           stream);
}

template <typename T>
void CudaForward<T>::widen(int layer, cudaStream_t stream) {
  const CudaLayer<T>& w = model_.layers[static_cast<size_t>(layer)];
  ActivationEpilogue<T> activation{norm_of(rows_, depth_scale(layer)), wide_.data(), model_.mlp_width};
  multiply(rows_.u, model_.width, w.up.data.data(), rows_.count, model_.mlp_width, model_.width, activation, stream);
}

template <typename T>
void CudaForward<T>::end_layer(int layer, cudaStream_t stream) {
  const CudaLayer<T>& w = model_.layers[static_cast<size_t>(layer)];
  const ModelConfig& c = model_.config;
  LayerEndEpilogue<T> end{};
  end.u = rows_.u;
  end.stride = model_.width;
  end.scale = w.mlp_scale.data();
  end.squares = rows_.squares;
  end.rows = rows_.count;
  int64_t encoders = c.encoder_layers(), next = layer + 1, decoder = next - encoders;
  if (layer < encoders) end.skip_out = skips_[static_cast<size_t>(layer)].data();
  if (next < c.num_layers) {
    const CudaLayer<T>& following = model_.layers[static_cast<size_t>(next)];
    end.x0 = x0_.data();
    end.shared = shared_;
    end.mix_x = following.mix_x.data();
    end.mix_x0 = following.mix_x0.data();
    if (decoder >= 0 && decoder < encoders) {
      end.skip_in = skips_[static_cast<size_t>(encoders - 1 - decoder)].data();
      end.skip_weight = following.skip_weight.data();
      end.skip_gate = following.skip_gate.data();
    }
  }
  multiply(wide_.data(), model_.mlp_width, w.down.data.data(), rows_.count, model_.width, model_.mlp_width, end,
           stream);
}

template <typename T>
void CudaForward<T>::observe_embeddings(const CudaBatch& batch, CudaInputObserver<T>& observer, cudaStream_t stream) {
  const ModelConfig& c = model_.config;
  int64_t rows = static_cast<int64_t>(batch.sequences) * batch.positions;
  RowPositions positions{batch.first, 0, batch.positions};
  if (c.bigram_vocab_size > 0) {
    const std::string name = "bigram.proj.weight";
    auto columns = static_cast<int>(c.bigram_dim);
    launch_gather_embedding(model_.bigram_embedding, columns, EmbeddingIndex::kBigram, c.bigram_vocab_size,
                            batch.tokens, positions, rows, observed_.data(), stream);
    observer.on_linear_input({&name, 1}, observed_.data(), batch.sequences, batch.positions, columns, stream);
  }
  if (!c.ve_layers.empty()) {
    const std::string name = "ve_shared.proj.weight";
    auto columns = static_cast<int>(c.ve_dim);
    launch_gather_embedding(model_.value_embedding, columns, EmbeddingIndex::kToken, 0, batch.tokens, positions, rows,
                            observed_.data(), stream);
    observer.on_linear_input({&name, 1}, observed_.data(), batch.sequences, batch.positions, columns, stream);
  }
}

template <typename T>
void CudaForward<T>::observe_stream(std::span<const std::string> weights, float c, CudaInputObserver<T>& observer,
                                    cudaStream_t stream) {
  auto columns = static_cast<int>(model_.config.model_dim);
  launch_linear_input(rows_.u, rows_.count, 1, columns, model_.width, norm_of(rows_, c), observed_.data(), stream);
  observer.on_linear_input(weights, observed_.data(), batch_.sequences, rows_.positions, columns, stream);
}

template <typename T>
void CudaForward<T>::make_room_to_observe() {
  const ModelConfig& c = model_.config;
  observed_.reserve(max_rows_ * std::max({c.model_dim, c.mlp_dim(), c.bigram_dim, c.ve_dim}));
}

template <typename T>
void CudaForward<T>::show(int input, CudaInputObserver<T>& observer, cudaStream_t stream) {
  const ModelConfig& c = model_.config;
  const int layer = input / kInputsOfLayer;
  const LayerNames names(layer);
  make_room_to_observe();
  // Without the padding of heads and widths.
  auto observe = [&](const std::string& name, const T* x, int heads, int head, int padded) {
    if (head != padded) {
      launch_linear_input(x, rows_.count, heads, head, padded, {}, observed_.data(), stream);
      x = observed_.data();
    }
    observer.on_linear_input({&name, 1}, x, batch_.sequences, rows_.positions, heads * head, stream);
  };
  switch (input % kInputsOfLayer) {
    case 0: {
      const std::string sharing[] = {names.query, names.key, names.value};
      return observe_stream(sharing, depth_scale(layer), observer, stream);
    }
    case 1:
      return observe(names.output, query_.data(), static_cast<int>(c.num_heads), static_cast<int>(c.head_dim()),
                     model_.head_width);
    case 2: return observe_stream({&names.up, 1}, depth_scale(layer), observer, stream);
    default: return observe(names.down, wide_.data(), 1, static_cast<int>(c.mlp_dim()), model_.mlp_width);
  }
}

template <typename T>
void CudaForward<T>::advance(int input, const CudaKeyValueCache<T>& cache, cudaStream_t stream) {
  const int layer = input / kInputsOfLayer;
  switch (input % kInputsOfLayer) {
    case 0: project_layer(layer, cache, stream); return attend(layer, cache, stream);
    case 1: return add_attention(layer, stream);
    case 2: return widen(layer, stream);
    default: return end_layer(layer, stream);
  }
}

template <typename T>
void CudaForward<T>::begin(const CudaBatch& batch, const SharedRows& shared, cudaStream_t stream) {
  batch_ = batch;
  shared_ = shared;
  const int64_t count = static_cast<int64_t>(batch.sequences) * batch.positions;
  rows_ = {u_.data(), {squares_.data(), parts_, max_rows_}, count, batch.positions, 0};
  launch_embed(model_, batch.tokens, RowPositions{batch.first, 0, batch.positions}, shared_,
               shared_.exist() ? shared_.count() : count, x0_.data(), shared_.exist() ? shared_u() : u_.data(),
               rows_.squares, stream);
}

template <typename T>
void CudaForward<T>::begin(const CudaBatch& batch, cudaStream_t stream) {
  begin(batch, SharedRows{}, stream);
}

template <typename T>
void CudaForward<T>::run(const CudaBatch& batch, const CudaKeyValueCache<T>& cache, cudaStream_t stream,
                         CudaInputObserver<T>* observer) {
  if (observer) {
    make_room_to_observe();
    observe_embeddings(batch, *observer, stream);
  }
  begin(batch, observer || stepping_ ? SharedRows{} : shared_rows(batch), stream);
  for (int input = 0; input < kInputsOfLayer * model_.config.num_layers; ++input) {
    if (observer) show(input, *observer, stream);
    advance(input, cache, stream);
  }
}

template <typename T>
void CudaForward<T>::loss(const uint16_t* targets, float* nll, cudaStream_t stream) {
  LossEpilogue epilogue{norm_of(rows_, 1),
                        static_cast<float>(model_.config.logit_softcap),
                        targets,
                        static_cast<int>(model_.config.vocab_size),
                        loss_parts_.data(),
                        target_logits_.data(),
                        rows_.count};
  multiply_head(epilogue, stream);
  launch_finish_loss(loss_parts_.data(), divide_up(model_.head().rows, kStepColumns), rows_.count,
                     target_logits_.data(), log_sums_.data(), nll, stream);
}

template <typename T>
void CudaForward<T>::logits(float* out, cudaStream_t stream) {
  LogitsEpilogue epilogue{norm_of(rows_, 1), static_cast<float>(model_.config.logit_softcap), out, logits_stride()};
  multiply_head(epilogue, stream);
}

template <typename T>
void CudaForward<T>::log_probabilities(float* out, cudaStream_t stream) {
  loss(/*targets=*/nullptr, /*nll=*/nullptr, stream);  // leaves log_sums_
  logits(out, stream);
  launch_subtract_rows(out, rows_.count, static_cast<int>(model_.config.vocab_size), logits_stride(), log_sums_.data(),
                       stream);
}

template struct CudaKeyValueCache<float>;
template struct CudaKeyValueCache<__nv_bfloat16>;
template class CudaForward<float>;
template class CudaForward<__nv_bfloat16>;

}  // namespace thimble
