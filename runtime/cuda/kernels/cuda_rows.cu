// cuda_rows.cu: embedding, compaction and loss. One warp per row unless a comment says otherwise.
#include "runtime/cuda/kernels/cuda_rows.cuh"

#include "runtime/codes/nvfp4.h"
#include "runtime/cuda/kernels/cuda_embed.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_qkv_epilogue.cuh"

namespace thimble {
namespace {

constexpr int kWarps = 8;

LaunchShape row_shape(int64_t rows, bool overlaps = false) {
  return {dim3(static_cast<unsigned>(divide_up(rows, kWarps))), kWarps * 32, 0, 1, overlaps};
}

__device__ int64_t own_row() { return static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32; }

__device__ int token_at(const CudaTokens& tokens, int sequence, int position) {
  return position < 0 ? -1 : tokens.data[sequence * tokens.stride + position];
}

__device__ TokenPlace place_of(const CudaTokens& tokens, const RowPositions& positions, const SharedRows& shared,
                               int64_t row) {
  if (shared.exist()) {
    auto distinct = static_cast<int>(row);
    return {tokens.data + shared.start(distinct), shared.position(distinct)};
  }
  return {tokens.data + positions.sequence(row) * tokens.stride, positions.position(row)};
}

// What is known without a row's own token, which the kernel before this one may draw, is read before its end.
template <typename T>
__global__ void embed_kernel(EmbedOperands<T> a, CudaTokens tokens, RowPositions positions, SharedRows shared,
                             int64_t rows) {
  const TokenPlace place = place_of(tokens, positions, shared, min(own_row(), rows - 1));
  EmbeddedRow<T> row(a, place);
  wait_for_previous();
  let_next_begin();
  if (own_row() < rows) row.store(a, place, place.token(0), own_row());
}

template <typename T>
__global__ void spread_kernel(SharedProjections<T> shared, T* u, T* query, T* keys, int64_t capacity, int64_t rows) {
  int64_t row = own_row();
  if (row >= rows) return;
  int first = static_cast<int>(threadIdx.x) % 32 * 8;
  int sequence = static_cast<int>(row) / shared.rows.positions,
      position = static_cast<int>(row) % shared.rows.positions;
  int64_t distinct = shared.rows.of(row);
  for (int column = first; column < shared.width; column += 256)
    Stored8<T>::load(shared.u + distinct * shared.width + column).store(u + row * shared.width + column);
  int query_columns = shared.query_heads * shared.head_width, kv_columns = 2 * shared.kv_heads * shared.head_width;
  const float* from = shared.heads + distinct * (query_columns + kv_columns);
  query += row * query_columns;
  keys += (sequence * capacity + position) * kv_columns - query_columns;
  for (int column = first; column < query_columns + kv_columns; column += 256) {
    float v[8];
    load_floats(from + column, v);
    if (column < query_columns + kv_columns / 2) {
      const int first_pair = column % shared.head_width / 2;
      if (first_pair < shared.half) {
        float2 angles[kRotaryQuad];
        const float2* from = shared.rotary + position * rotary_stride(shared.half) + first_pair;
#pragma unroll
        for (int i = 0; i < kRotaryQuad; i += 2) load_two_angles(from + i, angles[i], angles[i + 1]);
        rotate(v, angles);
      }
    }
    Stored8<T>::rounded(v).store((column < query_columns ? query : keys) + column);
  }
}

template <typename T>
__global__ void take_last_rows_kernel(const T* in, RowSquares in_squares, int64_t rows, int positions, int needed,
                                      int width, T* out, RowSquares out_squares) {
  int64_t row = own_row();
  if (row >= rows) return;
  int64_t from = row / needed * positions + positions - needed + row % needed;
  int lane = threadIdx.x % 32;
  for (int column = lane * 2; column < width; column += 64)
    store_pair(out + row * width + column, load_pair(in + from * width + column));
  for (int part = lane; part < in_squares.count; part += 32)
    out_squares.parts[part * out_squares.capacity + row] = in_squares.parts[part * in_squares.capacity + from];
}

template <typename T>
__global__ void linear_input_kernel(const T* in, int64_t in_stride, int64_t rows, HeadColumns columns, RowNorm norm,
                                    const float* gain, T* out, int64_t out_stride) {
  int64_t row = own_row();
  if (row >= rows) return;
  float factor = norm(row);
  const T* from = in + row * in_stride;
  for (int column = static_cast<int>(threadIdx.x) % 32; column < out_stride; column += 32) {
    float value = column < columns.count() ? factor * to_float(from[columns.place(column)]) : 0.0f;
    if (gain && column < columns.count()) value *= gain[column];
    out[row * out_stride + column] = from_float<T>(value);
  }
}

// Blocks of a row of NVFP4's staging. Those of a lane are 32 blocks apart.
template <typename T>
struct BlockedRow {
  const T* from;
  T* to;
  HeadColumns columns;
  float factor;
  bool has_whole_blocks;  // 16-byte pieces of memory

  __device__ bool is_whole(int first) const { return has_whole_blocks && first + kNvfp4Block <= columns.count(); }
  // Zeros beyond the row.
  __device__ void load(int first, float (&v)[kNvfp4Block]) const {
    if (is_whole(first)) {
      float halves[2][8];
      for (int half = 0; half < 2; ++half)
        Stored8<T>::load(from + columns.place(first) + 8 * half).unpack(halves[half]);
#pragma unroll
      for (int k = 0; k < kNvfp4Block; ++k) v[k] = factor * halves[k / 8][k % 8];
      return;
    }
#pragma unroll
    for (int k = 0; k < kNvfp4Block; ++k)
      v[k] = first + k < columns.count() ? factor * to_float(from[columns.place(first + k)]) : 0.0f;
  }
  __device__ void store(int first, const float (&v)[kNvfp4Block], float tensor_scale) const {
    const float scale = float_from_ue4m3(nvfp4_block_scale(nvfp4_amax(v, kNvfp4Block), tensor_scale));
    float halves[2][8];
#pragma unroll
    for (int k = 0; k < kNvfp4Block; ++k) halves[k / 8][k % 8] = nvfp4_value(v[k], scale, tensor_scale);
    if (is_whole(first)) {
      for (int half = 0; half < 2; ++half)
        Stored8<T>::rounded(halves[half]).store(to + columns.place(first) + 8 * half);
      return;
    }
#pragma unroll
    for (int k = 0; k < kNvfp4Block; ++k)
      if (first + k < columns.count()) to[columns.place(first + k)] = from_float<T>(halves[k / 8][k % 8]);
  }
};

// A lane keeps its first kKept blocks in registers; all are loaded before the first is needed.
template <typename T, int kKept>
__global__ void stage_nvfp4_kernel(const T* in, int64_t stride, int64_t rows, HeadColumns columns, RowNorm norm,
                                   T* out) {
  int64_t row = own_row();
  if (row >= rows) return;
  const T* from = in + row * stride;
  const bool is_aligned = reinterpret_cast<uintptr_t>(from) % 16 == 0;
  const bool has_whole_blocks = is_aligned && (columns.heads == 1 || columns.head % kNvfp4Block == 0);
  const BlockedRow<T> blocks{from, out + row * stride, columns, norm(row), has_whole_blocks};
  const int first = static_cast<int>(threadIdx.x) % 32 * kNvfp4Block, turn = 32 * kNvfp4Block, count = columns.count();
  float kept[kKept][kNvfp4Block], amax = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) blocks.load(first + i * turn, kept[i]);
#pragma unroll
  for (int i = 0; i < kKept; ++i) amax = nvfp4_amax(amax, nvfp4_amax(kept[i], kNvfp4Block));
  for (int at = first + kKept * turn; at < count; at += turn) {
    float v[kNvfp4Block];
    blocks.load(at, v);
    amax = nvfp4_amax(amax, nvfp4_amax(v, kNvfp4Block));
  }
  for (int distance = 16; distance > 0; distance /= 2) amax = nvfp4_amax(amax, __shfl_xor_sync(~0u, amax, distance));
  const float tensor_scale = nvfp4_tensor_scale(amax);
#pragma unroll
  for (int i = 0; i < kKept; ++i)
    if (first + i * turn < count) blocks.store(first + i * turn, kept[i], tensor_scale);
  for (int at = first + kKept * turn; at < count; at += turn) {
    float v[kNvfp4Block];
    blocks.load(at, v);
    blocks.store(at, v, tensor_scale);
  }
}

template <typename T>
__global__ void gather_kernel(GatherOperands<T> g, CudaTokens tokens, RowPositions positions, int64_t rows) {
  int64_t row = own_row();
  if (row >= rows) return;
  int sequence = positions.sequence(row), position = positions.position(row), id = position;
  if (g.index.kind != RowIndex::Kind::kPosition) id = token_at(tokens, sequence, position);
  if (g.index.kind == RowIndex::Kind::kTokenPair)
    id = bucket_of(id, token_at(tokens, sequence, position - 1), static_cast<int>(g.index.buckets));
  const T* from = g.table + id * g.table_stride;
  for (int64_t column = threadIdx.x % 32; column < g.padded; column += 32)
    g.out[row * g.stride + column] =
        from_float<T>(column < g.columns ? g.rounding(g.factor * to_float(from[column])) : 0.0f);
}

// One thread per row, tiles in ascending order.
__global__ void finish_loss_kernel(const float2* parts, int tiles, int64_t rows, const float* target_logits,
                                   float* log_sums, float* nll) {
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float peak = -INFINITY, sum = 0;
  for (int tile = 0; tile < tiles; ++tile) peak = fmaxf(peak, parts[tile * rows + row].x);
  for (int tile = 0; tile < tiles; ++tile) {
    float2 part = parts[tile * rows + row];
    sum += part.y * expf(part.x - peak);
  }
  float log_sum = peak + logf(sum);
  if (log_sums) log_sums[row] = log_sum;
  if (nll) nll[row] = log_sum - target_logits[row];
}

__global__ void subtract_rows_kernel(float* logits, int64_t rows, int columns, int64_t stride, const float* log_sums) {
  int64_t row = own_row();
  if (row >= rows) return;
  for (int column = static_cast<int>(threadIdx.x) % 32; column < columns; column += 32)
    logits[row * stride + column] = -(log_sums[row] - logits[row * stride + column]);
}

}  // namespace

template <typename T>
void launch_embed(const EmbedOperands<T>& operands, const CudaTokens& tokens, const RowPositions& positions,
                  const SharedRows& shared, int64_t rows, cudaStream_t stream) {
  launch_kernel(embed_kernel<T>, row_shape(rows, /*overlaps=*/true), stream, operands, tokens, positions, shared, rows);
}

template <typename T>
void launch_spread(const SharedProjections<T>& shared, T* u, T* query, T* keys, int64_t capacity, cudaStream_t stream) {
  int64_t rows = static_cast<int64_t>(shared.rows.sequences) * shared.rows.positions;
  launch_kernel(spread_kernel<T>, row_shape(rows), stream, shared, u, query, keys, capacity, rows);
}

template <typename T>
void launch_take_last_rows(const T* in, const RowSquares& in_squares, int sequences, int positions, int needed,
                           int width, T* out, const RowSquares& out_squares, cudaStream_t stream) {
  int64_t rows = static_cast<int64_t>(sequences) * needed;
  launch_kernel(take_last_rows_kernel<T>, row_shape(rows), stream, in, in_squares, rows, positions, needed, width, out,
                out_squares);
}

template <typename T>
void launch_linear_input(const T* in, int64_t in_stride, int64_t rows, const HeadColumns& columns, const RowNorm& norm,
                         const float* gain, T* out, int64_t out_stride, cudaStream_t stream) {
  launch_kernel(linear_input_kernel<T>, row_shape(rows), stream, in, in_stride, rows, columns, norm, gain, out,
                out_stride);
}

template <typename T>
void launch_stage_nvfp4(const T* in, int64_t stride, int64_t rows, const HeadColumns& columns, const RowNorm& norm,
                        T* out, cudaStream_t stream) {
  if (rows == 0) return;
  const bool is_narrow = columns.count() <= 32 * kNvfp4Block;
  launch_kernel(is_narrow ? stage_nvfp4_kernel<T, 1> : stage_nvfp4_kernel<T, 4>, row_shape(rows), stream, in, stride,
                rows, columns, norm, out);
}

template <typename T>
void launch_gather(const GatherOperands<T>& operands, const CudaTokens& tokens, const RowPositions& positions,
                   int64_t rows, cudaStream_t stream) {
  launch_kernel(gather_kernel<T>, row_shape(rows), stream, operands, tokens, positions, rows);
}

void launch_finish_loss(const float2* parts, int tiles, int64_t rows, const float* target_logits, float* log_sums,
                        float* nll, cudaStream_t stream) {
  launch_kernel(finish_loss_kernel, {dim3(static_cast<unsigned>(divide_up(rows, 256))), 256}, stream, parts, tiles,
                rows, target_logits, log_sums, nll);
}

void launch_subtract_rows(float* logits, int64_t rows, int columns, int64_t stride, const float* log_sums,
                          cudaStream_t stream) {
  launch_kernel(subtract_rows_kernel, row_shape(rows), stream, logits, rows, columns, stride, log_sums);
}

#define THIMBLE_INSTANTIATE(T)                                                                                        \
  template void launch_embed(const EmbedOperands<T>&, const CudaTokens&, const RowPositions&, const SharedRows&,      \
                             int64_t, cudaStream_t);                                                                  \
  template void launch_spread(const SharedProjections<T>&, T*, T*, T*, int64_t, cudaStream_t);                        \
  template void launch_take_last_rows(const T*, const RowSquares&, int, int, int, int, T*, const RowSquares&,         \
                                      cudaStream_t);                                                                  \
  template void launch_linear_input(const T*, int64_t, int64_t, const HeadColumns&, const RowNorm&, const float*, T*, \
                                    int64_t, cudaStream_t);                                                           \
  template void launch_stage_nvfp4(const T*, int64_t, int64_t, const HeadColumns&, const RowNorm&, T*, cudaStream_t); \
  template void launch_gather(const GatherOperands<T>&, const CudaTokens&, const RowPositions&, int64_t, cudaStream_t);
THIMBLE_INSTANTIATE(float)
THIMBLE_INSTANTIATE(__nv_bfloat16)
THIMBLE_INSTANTIATE(__half)
#undef THIMBLE_INSTANTIATE

}  // namespace thimble
