// cuda_composites.cu: the members of CudaPass that run one composite each.
#include <cassert>
#include <cmath>
#include <string>

#include "runtime/cuda/cuda_pass.cuh"

namespace thimble {
namespace {

constexpr float kLog2E = 1.4426950408889634f;

AttentionRounding attention_rounding(const NumericPolicy& policy, float scale) {
  const AttentionRounding rounding{policy.at(Boundary::kScores), policy.at(Boundary::kLinear), scale * kLog2E};
  if (rounding.exists() && !(std::abs(rounding.scale) <= kLargestRoundedScale))
    throw DeviceError("CUDA: attention that multiplies rounded scores by " + std::to_string(scale));
  return rounding;
}

}  // namespace

template <typename T>
RowSquares CudaPass<T>::squares(ValueId value) const {
  if (!fusion_.has_squares[static_cast<size_t>(value)]) return {};
  const auto at = static_cast<size_t>(place(value).slot);
  const int64_t capacity = at < fusion_.slot_widths.size() ? shape_.rows : shape_.needed;
  return {squares_[at].data(), runner_.products().square_parts(place(value).stride), capacity};
}

template <typename T>
RowNorm CudaPass<T>::norm(const FusedInput& input) const {
  if (!input.is_normed) return {};
  return {squares(input.value), 1.0f / static_cast<float>(network_.width_of(input.value)), input.factor, input.epsilon};
}

template <typename T>
typename CudaPass<T>::ProductInput CudaPass<T>::product_input(const T* data, int64_t rows, const FusedInput& input) {
  if (!weights_.policy().nvfp4) return {data, norm(input)};
  return {runner_.staged(data, place(input.value).stride, rows, columns_of(input.value), norm(input), stream_), {}};
}

template <typename T>
typename CudaPass<T>::Product CudaPass<T>::product(const FusedInput& input, const CudaMatrix<T>& matrix) {
  const ProductInput read = product_input(data(input.value), rows_.count, input);
  return {{read.data, place(input.value).stride, matrix.data.data(), rows_.count, matrix.rows, matrix.columns},
          read.norm};
}

template <typename T>
void CudaPass<T>::run(size_t, const fused::Single& work) {
  const Node& node = network_.nodes[work.node];
  if (std::holds_alternative<op::Columns>(node.operation)) return;
  std::vector<NodeRows<T>> inputs;
  for (ValueId input : node.inputs) inputs.push_back(value(input));
  CudaBatch batch = batch_;
  batch.positions = rows_.positions;
  assert(!rows_.is_compact || (!reads_earlier_rows(node.operation, 0) && !reads_earlier_rows(node.operation, 1)));
  runner_.run(node, inputs, value(node.output), batch, cache_, stream_);
}

template <typename T>
EmbedOperands<T> CudaPass<T>::embed_operands(const fused::Embed& work) const {
  const bool has_pairs = work.pairs != kAbsent;
  return {weights_.matrix(work.tokens).data.data(),
          has_pairs ? weights_.table(work.pairs).data.data() : nullptr,
          static_cast<int>(place(work.start).stride),
          has_pairs ? static_cast<int>(fusion_.tables[static_cast<size_t>(work.pairs)].index.buckets) : 0,
          1.0f / static_cast<float>(network_.width_of(work.start)),
          work.epsilon,
          weights_.vector(work.smear_gate),
          weights_.vector(work.first),
          weights_.vector(work.second),
          data(work.start),
          shared_.exist() ? shared_stream() : data(work.stream),
          squares(work.stream)};
}

template <typename T>
void CudaPass<T>::run(size_t, const fused::Embed& work) {
  launch_embed(embed_operands(work), batch_.tokens, batch_.row_positions(), shared_,
               shared_.exist() ? shared_.count() : rows_.count, stream_);
}

template <typename T>
void CudaPass<T>::run(size_t composite, const fused::Project& work) {
  const int64_t width = cuda_head_width(work.attention.head_dim);
  const int64_t query_columns = work.attention.heads * width, kv_columns = 2 * work.attention.kv_heads * width;
  if (shared_.exist() && composite == 1) return project_shared(composite, work);
  if (composite != fusion_.compacts_at || batch_.needed == batch_.positions)
    return project(composite, work, 0, query_columns + kv_columns);
  // Rows that nobody needs give their keys and values to the others, and no more.
  project(composite, work, query_columns, kv_columns);
  compact();
  project(composite, work, 0, query_columns);
}

template <typename T>
void CudaPass<T>::compact() {
  Rows needed{static_cast<int64_t>(batch_.sequences) * batch_.needed, batch_.needed,
              batch_.offset + batch_.positions - batch_.needed, true};
  for (ValueId value : fusion_.compacted) {
    const T* from = data(value);
    const RowSquares from_squares = squares(value);
    const Rows all = rows_;
    rows_ = needed;
    launch_take_last_rows(from, from_squares, batch_.sequences, batch_.positions, batch_.needed,
                          static_cast<int>(place(value).stride), data(value), squares(value), stream_);
    rows_ = all;
  }
  rows_ = needed;
}

template <typename T>
void CudaPass<T>::project(size_t composite, const fused::Project& work, int64_t first_column, int64_t columns) {
  const op::Attention& o = work.attention;
  const CudaMatrix<T>& matrix = weights_.joint_matrix(composite);
  const CudaProjectVectors& vectors = weights_.project_vectors(composite);
  const bool is_shared = shared_.exist() && composite == 1;
  const bool has_table = work.value_table != kAbsent && weights_.scalar(work.value_scale) != 0;
  const int64_t rows = is_shared ? int64_t{shared_.count()} : rows_.count;
  const ProductInput input = product_input(is_shared ? shared_stream() : data(work.input.value), rows, work.input);
  const QkvOperands<T> qkv{
      input.norm,
      {batch_.first, rows_.offset, rows_.positions},
      data(work.queries),
      cache_->keys(o.cache),
      cache_->capacity(),
      static_cast<int>(o.heads),
      static_cast<int>(o.kv_heads),
      static_cast<int>(first_column),
      1.0f / static_cast<float>(o.head_dim),
      work.norm_epsilon,
      angles(work.rotary),
      work.rotary == kAbsent ? 0 : static_cast<int>(network_.rotaries[static_cast<size_t>(work.rotary)].dims / 2),
      identity_.data(),
      vectors.query_scale.data(),
      has_table ? weights_.table(work.value_table).data.data() : nullptr,
      has_table ? weights_.scalar(work.value_scale) : 0,
      batch_.tokens.data,
      batch_.tokens.stride,
      shared_,
      is_shared ? shared_heads(work) : nullptr,
      vectors.bias.data()};
  const GemmOperands<T> operands{
      input.data, place(work.input.value).stride, matrix.data.data() + first_column * matrix.columns,
      rows,       static_cast<int>(columns),      matrix.columns};
  const QkvKind kind = is_shared ? QkvKind::kShared : work.has_bias() ? QkvKind::kBiased : QkvKind::kUnbiased;
  runner_.products().project(operands, qkv, kind, static_cast<int>(cuda_head_width(o.head_dim)), stream_);
}

// Rows that windows share are projected once; their rotation differs from window to window.
template <typename T>
void CudaPass<T>::project_shared(size_t composite, const fused::Project& work) {
  const op::Attention& o = work.attention;
  const int64_t width = cuda_head_width(o.head_dim);
  project(composite, work, 0, (o.heads + 2 * o.kv_heads) * width);
  const SharedProjections<T> projections{
      shared_,
      shared_stream(),
      shared_heads(work),
      static_cast<int>(place(work.input.value).stride),
      static_cast<int>(o.heads),
      static_cast<int>(o.kv_heads),
      static_cast<int>(width),
      angles(work.rotary),
      work.rotary == kAbsent ? 0 : static_cast<int>(network_.rotaries[static_cast<size_t>(work.rotary)].dims / 2)};
  launch_spread(projections, data(work.input.value), data(work.queries), cache_->keys(o.cache), cache_->capacity(),
                stream_);
}

template <typename T>
void CudaPass<T>::launch_attention(const AttentionOperands<T>& operands, int head_width) {
  if (shape_.stepping) return launch_step_attention(operands, head_width, stream_);
  if constexpr (sizeof(T) == 2) {
    if (runner_.products().uses_sm90() && head_width == kSm90HeadWidth && !operands.rounding.exists() &&
        operands.window == 0)
      return launch_window_attention_sm90(operands, stream_);
  }
  launch_window_attention(operands, head_width, stream_);
}

template <typename T>
void CudaPass<T>::run(size_t composite, const fused::Attend& work) {
  const op::Attention& o = work.attention;
  const auto width = static_cast<int>(cuda_head_width(o.head_dim));
  const int32_t scratch = fusion_.composites[composite].scratch;
  float largest = INFINITY;
  T* query = nullptr;
  if (work.is_projected) {
    query = data(work.output);
    for (size_t i = 0; i < composite; ++i)
      if (const auto* project = std::get_if<fused::Project>(&fusion_.composites[i].work);
          project && project->queries == work.query)
        largest = weights_.project_vectors(i).largest_score;
  } else {
    query = scratch == kAbsent ? data(work.output) : slot(scratch);
    place_heads(work, query);
  }
  launch_attention({query, cache_->keys(o.cache), cache_->capacity(), batch_.sequences, rows_.positions, batch_.first,
                    rows_.offset, static_cast<int>(o.heads), static_cast<int>(o.kv_heads), largest, o.exclusive,
                    static_cast<int>(o.window), attention_rounding(weights_.policy(), o.scale)},
                   width);
  if (scratch == kAbsent) return;
  launch_linear_input(static_cast<const T*>(query), o.heads * width, rows_.count,
                      {static_cast<int>(o.heads), static_cast<int>(o.head_dim), width}, RowNorm{}, nullptr,
                      data(work.output), place(work.output).stride, stream_);
}

template <typename T>
void CudaPass<T>::place_heads(const fused::Attend& work, T* query) {
  const op::Attention& o = work.attention;
  assert(!rows_.is_compact);
  const bool rounds = attention_rounding(weights_.policy(), o.scale).exists();
  launch_place_heads<T>(
      {value(work.query), value(work.key), value(work.value), o.head_dim, cuda_head_width(o.head_dim), o.heads,
       o.kv_heads, query, rounds ? 1 : o.scale * kLog2E, cache_->keys(o.cache), cache_->capacity()},
      batch_.row_positions(), stream_);
}

template <typename T>
void CudaPass<T>::run(size_t composite, const fused::LinearAdd& work) {
  T* u = data(work.output);
  assert(data(work.residual) == u);
  const GemmOperands<T> operands = product({work.input}, weights_.matrix(work.weight)).operands;
  const int64_t stride = place(work.output).stride;
  if (work.mix_first == kAbsent)
    return runner_.products().add(operands, u, stride, weights_.sum_scale(composite), weights_.vector(work.bias),
                                  squares(work.output), stream_);
  LayerEndEpilogue<T> end{};
  end.u = u;
  end.stride = stride;
  end.scale = weights_.sum_scale(composite);
  end.squares = squares(work.output);
  end.rows = rows_.count;
  if (work.sum != kAbsent) end.skip_out = data(work.sum);
  if (work.skipped != kAbsent) {
    end.skip_in = data(work.skipped);
    end.skip_weight = weights_.vector(work.skip_weight);
    end.skip_gate = weights_.vector(work.skip_gate);
  }
  end.x0 = data(work.start);
  end.shared = shared_;
  end.mix_x = weights_.vector(work.mix_first);
  end.mix_x0 = weights_.vector(work.mix_second);
  runner_.products().end_layer(operands, end, stream_);
}

template <typename T>
void CudaPass<T>::run(size_t, const fused::LinearActivate& work) {
  const auto [operands, norm] = product(work.input, weights_.matrix(work.weight));
  runner_.products().activate(operands, norm, work.activation, weights_.vector(work.bias), data(work.output),
                              place(work.output).stride, stream_);
}

template <typename T>
void CudaPass<T>::run(size_t composite, const fused::LinearGate& work) {
  const auto [operands, norm] = product(work.input, weights_.joint_matrix(composite));
  runner_.products().gate(operands, norm, work.activation, data(work.output), place(work.output).stride, stream_);
}

#define THIMBLE_INSTANTIATE(T)                                                      \
  template RowSquares CudaPass<T>::squares(ValueId) const;                          \
  template RowNorm CudaPass<T>::norm(const FusedInput&) const;                      \
  template void CudaPass<T>::run(size_t, const fused::Single&);                     \
  template EmbedOperands<T> CudaPass<T>::embed_operands(const fused::Embed&) const; \
  template void CudaPass<T>::run(size_t, const fused::Embed&);                      \
  template void CudaPass<T>::run(size_t, const fused::Project&);                    \
  template void CudaPass<T>::run(size_t, const fused::Attend&);                     \
  template void CudaPass<T>::run(size_t, const fused::LinearAdd&);                  \
  template void CudaPass<T>::run(size_t, const fused::LinearActivate&);             \
  template void CudaPass<T>::run(size_t, const fused::LinearGate&);
THIMBLE_INSTANTIATE(float)
THIMBLE_INSTANTIATE(__nv_bfloat16)
THIMBLE_INSTANTIATE(__half)
#undef THIMBLE_INSTANTIATE

}  // namespace thimble
