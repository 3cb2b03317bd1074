// cuda_pass.cu: the composites in their order, and what stands around them: observers, the output head.
#include "runtime/cuda/cuda_pass.cuh"

#include <algorithm>
#include <cassert>

namespace thimble {

template <typename T>
CudaPass<T>::CudaPass(const CudaNetworkWeights<T>& weights, const CudaPassShape& shape)
    : weights_(weights),
      network_(weights.network()),
      fusion_(weights.fusion()),
      shape_(shape),
      target_logits_(shape.needed),
      log_sums_(shape.needed),
      loss_parts_(shape.needed * CudaProducts<T>::most_loss_tiles(logits_stride())),
      runner_(weights, rotaries_, shape.rows, shape.stepping) {
  identity_.copy(std::vector<float2>(kRotaryQuad, {1, 0}));
  for (const RotaryRule& rule : network_.rotaries) rotaries_.push_back(make_cuda_rotary_table(rule, shape.context));
  for (int64_t width : fusion_.slot_widths) slots_.emplace_back(width * shape.rows);
  for (int64_t width : fusion_.compact_widths) slots_.emplace_back(width * shape.needed);
  for (DeviceArray<T>& slot : slots_) slot.fill_zero();  // products read what pads a row: it must be finite
  allocate_squares();
  const int64_t head_width = weights.matrix(network_.head.weight).columns;
  const bool is_compact = fusion_.compacts_at < fusion_.composites.size();
  if (!fusion_.head.is_normed || !is_compact) head_input_ = DeviceArray<T>(shape.needed * head_width);
  if (fusion_.head.is_normed && !is_compact)
    head_squares_ = DeviceArray<float>(
        shape.needed * runner_.products().square_parts(fusion_.places[static_cast<size_t>(fusion_.head.value)].stride));
}

template <typename T>
void CudaPass<T>::allocate_squares() {
  std::vector<int64_t> floats(slots_.size());
  for (size_t v = 0; v < fusion_.places.size(); ++v) {
    if (!fusion_.has_squares[v]) continue;
    for (const Place& place : {fusion_.places[v], fusion_.compact_places[v]}) {
      if (!place) continue;
      const auto slot = static_cast<size_t>(place.slot);
      const int64_t rows = slot < fusion_.slot_widths.size() ? shape_.rows : shape_.needed;
      floats[slot] = std::max(floats[slot], rows * runner_.products().square_parts(place.stride));
    }
  }
  for (int64_t count : floats) squares_.emplace_back(count);
}

template <typename T>
void CudaPass<T>::reserve_shown() {
  int64_t widest = 0;
  for (const LinearInput& input : network_.linear_inputs()) {
    const Place& stored = fusion_.places[static_cast<size_t>(input.value)];
    const int64_t columns = network_.width_of(input.value);
    if (!stored || stored.stride != columns) widest = std::max(widest, columns);
  }
  shown_.reserve(widest * shape_.rows, "activations");
}

// Windows that overlap, at even distances; where sharing pays and the scratch holds the distinct rows.
template <typename T>
SharedRows CudaPass<T>::shared_rows(const CudaBatch& batch) const {
  if (shape_.stepping || fusion_.shared_scratch == kAbsent) return {};
  SharedRows shared{batch.sequences, batch.positions, static_cast<int>(batch.tokens.stride)};
  const auto& embed = std::get<fused::Embed>(fusion_.composites[0].work);
  const auto& work = std::get<fused::Project>(fusion_.composites[1].work);
  const int64_t columns =
      (work.attention.heads + 2 * work.attention.kv_heads) * cuda_head_width(work.attention.head_dim);
  const int64_t stride = fusion_.places[static_cast<size_t>(work.input.value)].stride;
  const int64_t distinct_bytes =
      stride * static_cast<int64_t>(sizeof(T)) + columns * static_cast<int64_t>(sizeof(float));
  const bool overlap = batch.sequences > 1 && batch.tokens.stride > 0 && batch.tokens.stride < batch.positions;
  const auto scratch_bytes = static_cast<int64_t>(slots_[static_cast<size_t>(fusion_.shared_scratch)].bytes());
  const bool fits = 2 * shared.count() <= batch.rows() && shared.count() * distinct_bytes <= scratch_bytes;
  // The first layer keeps all its rows, and the rows that are left when others go have not been distinct ones.
  const bool keeps_start = std::ranges::count(fusion_.compacted, embed.start) == 0;
  const bool whole = batch.needed == batch.positions || (fusion_.compacts_at > 1 && keeps_start);
  return overlap && batch.positions > SharedRows::kFirstRows && fits && whole ? shared : SharedRows{};
}

template <typename T>
void CudaPass<T>::begin(const CudaBatch& batch, const CudaCache<T>& cache, const SharedRows& shared,
                        cudaStream_t stream) {
  assert(batch.rows() <= shape_.rows);
  assert(batch.needed == batch.positions || static_cast<int64_t>(batch.sequences) * batch.needed <= shape_.needed);
  batch_ = batch;
  cache_ = &cache;
  stream_ = stream;
  shared_ = shared;
  rows_ = {batch.rows(), batch.positions, batch.offset, false};
  next_ = 0;
}

template <typename T>
void CudaPass<T>::begin(const CudaBatch& batch, const CudaCache<T>& cache, cudaStream_t stream) {
  begin(batch, cache, SharedRows{}, stream);
}

template <typename T>
void CudaPass<T>::run_to(size_t node) {
  for (; next_ < fusion_.composites.size() && fusion_.composites[next_].trigger < node; ++next_)
    std::visit([&](const auto& work) { run(next_, work); }, fusion_.composites[next_].work);
}

template <typename T>
void CudaPass<T>::run(const CudaBatch& batch, const CudaCache<T>& cache, cudaStream_t stream,
                      CudaInputObserver<T>* observer) {
  begin(batch, cache, observer ? SharedRows{} : shared_rows(batch), stream);
  if (observer) {
    assert(batch.needed == batch.positions);
    for (const LinearInput& input : network_.linear_inputs()) {
      run_to(input.first_reader);
      show(input, *observer);
    }
  }
  run_to(network_.nodes.size());
}

template <typename T>
void CudaPass<T>::draw_and_run(const SampleRequest& draw, const CudaBatch& batch, const CudaCache<T>& cache,
                               cudaStream_t stream) {
  assert(shape_.stepping && draw.offset + 1 == batch.offset);
  begin(batch, cache, stream);
  if (const auto* embed = std::get_if<fused::Embed>(&fusion_.composites.front().work)) {
    launch_sample_and_embed(draw, embed_operands(*embed), stream);
    ++next_;
  } else {
    launch_sample(draw, stream);
  }
  run_to(network_.nodes.size());
}

template <typename T>
NodeRows<T> CudaPass<T>::value(ValueId value) const {
  const Place& at = place(value);
  const bool is_whole = fusion_.has_padded_heads[static_cast<size_t>(value)];
  const int64_t columns = is_whole ? at.stride : at.width;
  const bool fills_row = at.first_column == 0 && round_up(columns, fusion_.options.column_multiple) == at.stride;
  return {data(value), rows_.count, columns, at.stride, fills_row ? at.stride : columns};
}

template <typename T>
HeadColumns CudaPass<T>::columns_of(ValueId value) const {
  if (fusion_.has_padded_heads[static_cast<size_t>(value)])
    for (const Composite& composite : fusion_.composites)
      if (const auto* attend = std::get_if<fused::Attend>(&composite.work); attend && attend->output == value) {
        const op::Attention& o = attend->attention;
        return {static_cast<int>(o.heads), static_cast<int>(o.head_dim), static_cast<int>(cuda_head_width(o.head_dim))};
      }
  const auto columns = static_cast<int>(network_.width_of(value));
  return {1, columns, columns};
}

template <typename T>
void CudaPass<T>::show(const LinearInput& input, CudaInputObserver<T>& observer) {
  std::vector<std::string> names;
  for (MatrixId id : input.readers) names.push_back(network_.matrix(id).name);
  const auto columns = static_cast<int>(network_.width_of(input.value));
  const ShownValue shown = shown_value(network_, fusion_, input.value);
  const bool is_stored = shown.kind == ShownValue::Kind::kStored;
  if (is_stored && place(input.value).stride == columns)
    return observer.on_linear_input(names, data(input.value), batch_.sequences, rows_.positions, columns, stream_);
  reserve_shown();
  if (shown.kind == ShownValue::Kind::kGathered) {
    const Node& node = network_.nodes[shown.gather];
    runner_.run(node, {}, {shown_.data(), batch_.rows(), columns, columns, columns}, batch_, cache_, stream_);
    return observer.on_linear_input(names, shown_.data(), batch_.sequences, batch_.positions, columns, stream_);
  }
  const ValueId from = shown.input.value;
  launch_linear_input(static_cast<const T*>(data(from)), place(from).stride, rows_.count, columns_of(from),
                      norm(shown.input), weights_.vector(shown.input.gain), shown_.data(), int64_t{columns}, stream_);
  observer.on_linear_input(names, shown_.data(), batch_.sequences, rows_.positions, columns, stream_);
}

// What the head multiplies: in place, or a copy of the needed rows.
template <typename T>
typename CudaPass<T>::Product CudaPass<T>::head_input(cudaStream_t stream) const {
  assert(next_ == fusion_.composites.size() && static_cast<int64_t>(batch_.sequences) * batch_.needed <= shape_.needed);
  const CudaMatrix<T>& head = weights_.matrix(network_.head.weight);
  const FusedInput& input = fusion_.head;
  const int64_t needed = static_cast<int64_t>(batch_.sequences) * batch_.needed;
  GemmOperands<T> operands{data(input.value), place(input.value).stride, head.data.data(), needed, head.rows,
                           head.columns};
  RowNorm own = norm(input);
  if (input.is_normed && rows_.count == needed) return {operands, own};
  operands.a = head_input_.data();
  if (input.is_normed) {
    const RowSquares squares{head_squares_.data(), own.squares.count, shape_.needed};
    launch_take_last_rows(static_cast<const T*>(data(input.value)), own.squares, batch_.sequences, batch_.positions,
                          batch_.needed, head.columns, head_input_.data(), squares, stream);
    own.squares = squares;
    return {operands, own};
  }
  operands.a_stride = head.columns;
  const int64_t columns = network_.matrix(network_.head.weight).columns;
  CudaNodeRows<T>(stream).copy_last(value(input.value), rows_.positions,
                                    {head_input_.data(), needed, columns, head.columns, head.columns}, batch_.needed);
  return {operands, own};
}

template <typename T>
template <typename Launch>
void CudaPass<T>::with_logit_rule(const RowNorm& norm, const Launch& launch) const {
  const NumericPolicy& policy = weights_.policy();
  const float cap = network_.head.softcap;
  if (fusion_.options.fuses_products || policy.is_exact()) return launch(LogitRule<false>{norm, cap});
  launch(LogitRule<true>{norm, cap, policy.at(Boundary::kLogits), policy.at(Boundary::kCapped), policy.logits_scale});
}

template <typename T>
void CudaPass<T>::loss(const Token* targets, float* nll, cudaStream_t stream) {
  const Product head = head_input(stream);
  with_logit_rule(head.norm, [&]<bool kRounds>(const LogitRule<kRounds>& rule) {
    const LossEpilogue<kRounds> epilogue{rule,
                                         targets,
                                         static_cast<int>(network_.vocabulary()),
                                         loss_parts_.data(),
                                         target_logits_.data(),
                                         head.operands.rows};
    runner_.products().template loss<kRounds>(head.operands, epilogue, stream);
  });
  launch_finish_loss(loss_parts_.data(), runner_.products().loss_tiles(head.operands.columns), head.operands.rows,
                     target_logits_.data(), log_sums_.data(), nll, stream);
}

template <typename T>
void CudaPass<T>::logits(float* out, cudaStream_t stream) {
  logits(0, static_cast<int64_t>(batch_.sequences) * batch_.needed, out, stream);
}

template <typename T>
void CudaPass<T>::logits(int64_t first, int64_t rows, float* out, cudaStream_t stream) {
  Product head = head_input(stream);
  head.operands.a += first * head.operands.a_stride;
  head.operands.rows = rows;
  if (head.norm.squares.parts) head.norm.squares.parts += first;
  with_logit_rule(head.norm, [&]<bool kRounds>(const LogitRule<kRounds>& rule) {
    runner_.products().template logits<kRounds>(head.operands, LogitsEpilogue<kRounds>{rule, out, logits_stride()},
                                                stream);
  });
}

template <typename T>
void CudaPass<T>::log_probabilities(int64_t first, int64_t rows, float* out, cudaStream_t stream) {
  loss(/*targets=*/nullptr, /*nll=*/nullptr, stream);  // leaves log_sums_
  logits(first, rows, out, stream);
  launch_subtract_rows(out, rows, static_cast<int>(network_.vocabulary()), logits_stride(), log_sums_.data() + first,
                       stream);
}

template class CudaPass<float>;
template class CudaPass<__nv_bfloat16>;
template class CudaPass<__half>;

}  // namespace thimble
