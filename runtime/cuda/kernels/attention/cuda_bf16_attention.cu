// cuda_bf16_attention.cu: see cuda_bf16_attention.cuh; which kernels a device and a width take, and what is prepared
// for them.
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"

#include <numbers>

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_mma.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_rows.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sm90.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {
namespace {

using Rounded = __nv_bfloat16;
using Operands = Bf16AttentionOperands;

// Can the kernels read these heads where they lie?
bool lies_in_place(const ConstBf16View& x, int64_t head_dim) {
  return head_dim == bf16_head_width(head_dim) && reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0;
}

Bf16Heads heads_of(ConstBf16View x, int64_t head_dim, DeviceArray<Rounded>& padded, cudaStream_t stream) {
  if (lies_in_place(x, head_dim)) return {x.data, x.stride};
  const int64_t heads = x.columns / head_dim, width = bf16_head_width(head_dim);
  padded.reserve(x.rows * heads * width, "attention");
  launch_rows(x.rows,
              PadHeads{x, static_cast<int>(heads), static_cast<int>(head_dim), static_cast<int>(width), padded.data()},
              stream);
  return {padded.data(), heads * width};
}

bool uses_sm90(const op::Attention& shape) { return shape.head_dim == kSm90HeadWidth && has_sm90_kernels(); }

// Leaves y . dy in `in`, where dv begins in dv, and dy as the kernels read it in `to`, unless it lies so.
void prepare_gradients(ConstBf16View v, ConstBf16View y, ConstBf16View dy, const op::Attention& shape,
                       const Operands& in, Rounded* to, Bf16View dv, cudaStream_t stream) {
  const bool has_all = has_row_vectors(v) && has_row_vectors(y) && has_row_vectors(dy) && has_row_vectors(dv) &&
                       has_head_vectors<Rounded>(shape.head_dim, /*half=*/0);
  with_head_lanes<Rounded>(shape.head_dim, has_all, [&]<int kLanes, int kPieces, int kWidth>() {
    const int group = in.heads / in.kv_heads, sharing = std::min(32 / kLanes, group & -group);
    const RowHeads all(y.rows, shape.kv_heads * sharing, shape.head_dim);
    const auto width = static_cast<int>(bf16_head_width(shape.head_dim));
    launch_rows(divide_up(all.count, 32 / kLanes),
                PrepareGradients<kLanes, kPieces, kWidth>{all, sharing, v, y, dy, in, shape.exclusive, to, width, dv},
                stream);
  });
}

template <typename From, typename To>
void convert(BasicCudaView<const From> from, BasicCudaView<To> to, cudaStream_t stream) {
  launch_rows(from.rows, ConvertRows<From, To>{from, to}, stream);
}

}  // namespace

void CudaBf16Attention::Wide::resize(const op::Attention& shape, const BatchShape& batch) {
  attention.reserve(shape, batch);
  for (CudaFloatMatrix* matrix : {&q, &y, &dq}) matrix->resize(batch.rows(), shape.heads * shape.head_dim);
  for (CudaFloatMatrix* matrix : {&k, &v, &dk, &dv}) matrix->resize(batch.rows(), shape.kv_heads * shape.head_dim);
}

void CudaBf16Attention::reserve(const op::Attention& shape, const BatchShape& batch) {
  if (shape.head_dim > kWidestBf16Head) return wide_.resize(shape, batch);
  const int64_t width = bf16_head_width(shape.head_dim);
  along_.reserve(batch.rows() * shape.heads, "attention");
  dy_.reserve(batch.rows() * shape.heads * width, "attention");
  if (width == shape.head_dim) return;
  q_.reserve(batch.rows() * shape.heads * width, "attention");
  for (DeviceArray<Rounded>* array : {&k_, &v_}) array->reserve(batch.rows() * shape.kv_heads * width, "attention");
}

Bf16AttentionOperands CudaBf16Attention::operands(ConstBf16View q, ConstBf16View k, ConstBf16View v,
                                                  const op::Attention& shape, const BatchShape& batch,
                                                  const CudaAttentionSums& sums, cudaStream_t stream) {
  return {heads_of(q, shape.head_dim, q_, stream),
          heads_of(k, shape.head_dim, k_, stream),
          heads_of(v, shape.head_dim, v_, stream),
          {},
          sums.log_sums.data(),
          sums.along_own.data(),
          sums.remainders.data(),
          along_.data(),
          static_cast<int>(batch.positions),
          static_cast<int>(shape.heads),
          static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.window),
          static_cast<int>(shape.head_dim),
          shape.scale * std::numbers::log2e_v<float>};
}

void CudaBf16Attention::forward(ConstBf16View q, ConstBf16View k, ConstBf16View v, const op::Attention& shape,
                                const BatchShape& batch, CudaAttentionSums& sums, Bf16View y, cudaStream_t stream) {
  reserve(shape, batch);
  if (shape.head_dim > kWidestBf16Head) {
    convert(q, wide_.q.view(), stream);
    convert(k, wide_.k.view(), stream);
    convert(v, wide_.v.view(), stream);
    wide_.attention.forward(wide_.q, wide_.k, wide_.v, shape, batch, wide_.y, stream);
    return convert(ConstCudaView(wide_.y), y, stream);
  }
  sums.reserve(shape, batch);
  const Operands in = operands(q, k, v, shape, batch, sums, stream);
  if (uses_sm90(shape)) return launch_attention_forward_sm90(in, batch.sequences, shape.exclusive, y, stream);
  launch_attention_forward_mma(in, batch.sequences, shape.exclusive, y, stream);
}

void CudaBf16Attention::backward(ConstBf16View q, ConstBf16View k, ConstBf16View v, ConstBf16View y, ConstBf16View dy,
                                 const op::Attention& shape, const BatchShape& batch, const CudaAttentionSums& sums,
                                 Bf16View dq, Bf16View dk, Bf16View dv, cudaStream_t stream) {
  reserve(shape, batch);
  if (shape.head_dim > kWidestBf16Head) {
    convert(q, wide_.q.view(), stream);
    convert(k, wide_.k.view(), stream);
    convert(v, wide_.v.view(), stream);
    convert(dy, wide_.y.view(), stream);
    wide_.attention.backward(wide_.q, wide_.k, wide_.v, shape, batch, wide_.y, wide_.dq, wide_.dk, wide_.dv, stream);
    convert(ConstCudaView(wide_.dq), dq, stream);
    convert(ConstCudaView(wide_.dk), dk, stream);
    return convert(ConstCudaView(wide_.dv), dv, stream);
  }
  Operands in = operands(q, k, v, shape, batch, sums, stream);
  const bool is_in_place = !shape.exclusive && lies_in_place(dy, shape.head_dim);
  in.dy = is_in_place ? Bf16Heads{dy.data, dy.stride}
                      : Bf16Heads{dy_.data(), shape.heads * bf16_head_width(shape.head_dim)};
  prepare_gradients(v, y, dy, shape, in, is_in_place ? nullptr : dy_.data(), dv, stream);
  if (uses_sm90(shape)) {
    launch_query_gradient_sm90(in, batch.sequences, dq, shape.scale, stream);
    return launch_key_gradients_sm90(in, batch.sequences, dk, dv, /*adds_dv=*/shape.exclusive, shape.scale, stream);
  }
  launch_query_gradient_mma(in, batch.sequences, dq, shape.scale, stream);
  launch_key_gradients_mma(in, batch.sequences, dk, dv, /*adds_dv=*/shape.exclusive, shape.scale, stream);
}

}  // namespace thimble
