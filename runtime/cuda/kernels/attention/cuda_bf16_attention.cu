// cuda_bf16_attention.cu: see cuda_bf16_attention.cuh. With s_ij = q_i . k_j, in units in which a weight is 2^s,
//   P_ij = 2^(s_ij - l_i),  y_i = sum_j P_ij v_j,  l_i = log2 sum_j 2^s_ij
//   dS_ij = P_ij (dy_i . v_j - y_i . dy_i),  dq_i = scale sum_j dS_ij k_j,  dk_j = scale sum_i dS_ij q_i,
//   dv_j = sum_i P_ij dy_i
// A CTA of four warps has 64 queries (or keys) of one head, each warp 16 of them, and walks over the keys that they see
// (or the queries that see them, of all heads that share the keys) in steps, of which the next is on its way to shared
// memory while one is multiplied.
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"

#include <numbers>

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_attention_rows.cuh"
#include "runtime/cuda/kernels/attention/cuda_attention_tiles.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

using Rounded = __nv_bfloat16;
using gemm_detail::commit_copies;
using gemm_detail::multiply_tiles;
using gemm_detail::wait_for_copies;

constexpr const Rounded* kBf16 = nullptr;
constexpr int kTile = kAttentionTile, kStages = 2;

using Operands = Bf16AttentionOperands;

__device__ int heads_per_group(const Operands& in) { return in.heads / in.kv_heads; }
// Where a head's values of queries begin.
__device__ int64_t first_of(const Operands& in, int64_t sequence, int head) {
  return (sequence * in.heads + head) * int64_t{in.positions};
}

// Rows [first, first + count) of one head of one window.
template <int kHead>
struct HeadRows {
  const Rounded* data;
  int64_t stride;
  int positions;

  __device__ HeadRows(const Rounded* matrix, const Operands& in, int64_t sequence, int head, int heads)
      : data(matrix + sequence * in.positions * heads * kHead + head * kHead),
        stride(int64_t{heads} * kHead),
        positions(in.positions) {}
  template <int kRows>
  __device__ void load(uint32_t shared, int first) const {
    HeadTile<Rounded, kHead, kRows>::load(shared, data + first * stride, stride, positions - first);
  }
};

// Writes or adds factor * sums of this warp's rows, the first of which is `first` of the window, to a head's columns.
template <int kHead>
__device__ void store_sums(const FragmentValues<kHead>& sums, const float (&factors)[2], bool adds, const Operands& in,
                           int64_t sequence, int first, int head, CudaView to) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int position = first + lane / 4 + half * 8;
    if (position >= in.positions) continue;
    float* row = to.data + (sequence * in.positions + position) * to.stride + head * in.head_dim;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int column = 8 * j + lane % 4 * 2 + i;
        const float value = factors[half] * sums[j][2 * half + i];
        if (column < in.head_dim) row[column] = adds ? row[column] + value : value;
      }
  }
}

// A CTA's tile of queries: late ones see the most keys, so they come first.
struct QueryTile {
  int first, first_key_tile, steps, head, kv_head;
  int64_t sequence;

  __device__ explicit QueryTile(const Operands& in)
      : first(static_cast<int>(gridDim.x - 1 - blockIdx.x) * kTile),
        head(static_cast<int>(blockIdx.y)),
        kv_head(head / heads_per_group(in)),
        sequence(blockIdx.z) {
    first_key_tile = first_seen(first, in.window) / kTile;
    steps = first / kTile + 1 - first_key_tile;
  }
};

// The keys and values that a tile of queries sees, kTile of them in a step, of which kStages lie in shared memory.
template <int kHead>
class KeySteps {
  using Tile = HeadTile<Rounded, kHead>;

 public:
  __device__ KeySteps(const Operands& in, const QueryTile& tile, uint32_t shared)
      : k_(in.k, in, tile.sequence, tile.kv_head, in.kv_heads),
        v_(in.v, in, tile.sequence, tile.kv_head, in.kv_heads),
        first_tile_(tile.first_key_tile),
        shared_(shared) {}

  __device__ int first_key(int step) const { return (first_tile_ + step) * kTile; }
  __device__ uint32_t k_at(int step) const {
    return shared_ + static_cast<uint32_t>(step % kStages * 2 * Tile::kBytes);
  }
  __device__ uint32_t v_at(int step) const { return k_at(step) + Tile::kBytes; }
  __device__ void load(int step) const {
    k_.template load<kTile>(k_at(step), first_key(step));
    v_.template load<kTile>(v_at(step), first_key(step));
  }

 private:
  HeadRows<kHead> k_, v_;
  int first_tile_;
  uint32_t shared_;
};

// What rounding to bf16 leaves of weights.
__device__ void keep_remainders(FragmentValues<kTile>& weights) {
#pragma unroll
  for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) weights[j][i] -= __bfloat162float(__float2bfloat16_rn(weights[j][i]));
}

// kPrecise: weights count with twice the bits, as y . dy, from which dy . v is subtracted, asks for.
template <int kHead, bool kPrecise>
__global__ void __launch_bounds__(gemm_detail::kThreads)
    forward_kernel(const __grid_constant__ Operands in, const __grid_constant__ CudaView y) {
  using Tile = HeadTile<Rounded, kHead>;
  extern __shared__ __align__(128) char shared_memory[];
  const auto q_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), steps_at = q_at + Tile::kBytes;
  const QueryTile at(in);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const HeadRows<kHead> q(in.q, in, at.sequence, at.head, in.heads);
  const KeySteps<kHead> keys(in, at, steps_at);
  q.template load<kTile>(q_at, at.first);
  keys.load(0);
  commit_copies();

  const int first_query = at.first + warp * 16;
  FragmentValues<kHead> out = {};
  float peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  for (int step = 0; step < at.steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // the step has arrived for all, and all have left the one that is loaded next
    if (step + 1 < at.steps) keys.load(step + 1);
    commit_copies();
    FragmentValues<kTile> scores[1] = {};
    multiply_tiles<1, kTile, Tile>(scores, q_at, keys.k_at(step), kBf16);
    mask_scores<kTile>(first_query, keys.first_key(step), in.window, scores[0]);
    weigh<kHead, kTile>(scores[0], peak, sum, out);
    multiply_values<kHead, kTile>(out, scores[0], keys.v_at(step), kBf16);
    if constexpr (kPrecise) {
      keep_remainders(scores[0]);
      multiply_values<kHead, kTile>(out, scores[0], keys.v_at(step), kBf16);
    }
  }
  float factors[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float all = sum_over_lanes<4>(sum[half]);
    factors[half] = 1 / all;
    const int position = first_query + lane / 4 + half * 8;
    if (lane % 4 == 0 && position < in.positions)
      in.log_sums[first_of(in, at.sequence, at.head) + position] = peak[half] + log2f(all);
  }
  store_sums<kHead>(out, factors, /*adds=*/false, in, at.sequence, first_query, at.head, y);
}

template <int kHead>
__global__ void __launch_bounds__(gemm_detail::kThreads)
    query_gradient_kernel(const __grid_constant__ Operands in, const __grid_constant__ CudaView dq, float scale) {
  using Tile = HeadTile<Rounded, kHead>;
  extern __shared__ __align__(128) char shared_memory[];
  const auto q_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), dy_at = q_at + Tile::kBytes,
             steps_at = dy_at + Tile::kBytes;
  const QueryTile at(in);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const HeadRows<kHead> q(in.q, in, at.sequence, at.head, in.heads), dy(in.dy, in, at.sequence, at.head, in.heads);
  const KeySteps<kHead> keys(in, at, steps_at);
  q.template load<kTile>(q_at, at.first);
  dy.template load<kTile>(dy_at, at.first);
  keys.load(0);
  commit_copies();

  const int first_query = at.first + warp * 16;
  float log_sums[2], along[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t row = first_of(in, at.sequence, at.head) + min(first_query + lane / 4 + half * 8, in.positions - 1);
    log_sums[half] = in.log_sums[row];
    along[half] = in.along[row];
  }
  FragmentValues<kHead> sums = {};
  for (int step = 0; step < at.steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // as in forward_kernel
    if (step + 1 < at.steps) keys.load(step + 1);
    commit_copies();
    FragmentValues<kTile> scores[1] = {}, products[1] = {};
    multiply_tiles<1, kTile, Tile>(scores, q_at, keys.k_at(step), kBf16);
    mask_scores<kTile>(first_query, keys.first_key(step), in.window, scores[0]);
    multiply_tiles<1, kTile, Tile>(products, dy_at, keys.v_at(step), kBf16);
#pragma unroll
    for (int j = 0; j < kTile / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        scores[0][j][i] = exp2_fast(scores[0][j][i] - log_sums[i / 2]) * (products[0][j][i] - along[i / 2]);
    multiply_values<kHead, kTile>(sums, scores[0], keys.k_at(step), kBf16);
  }
  store_sums<kHead>(sums, {scale, scale}, /*adds=*/false, in, at.sequence, first_query, at.head, dq);
}

// Scores of keys (rows of the fragment) and queries: as mask_scores().
template <int kQueries>
__device__ void mask_transposed(int first_key, int first_query, int window, FragmentValues<kQueries>& scores) {
  const int lane = threadIdx.x % 32;
  const bool has_diagonal = first_query < first_key + 15;
  const bool has_window = first_seen(first_query + kQueries - 1, window) > first_key;
  if (!has_diagonal && !has_window) return;
#pragma unroll
  for (int j = 0; j < kQueries / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = first_query + 8 * j + lane % 4 * 2 + i % 2, key = first_key + lane / 4 + i / 2 * 8;
      if (key > query || key < first_seen(query, window)) scores[j][i] = -INFINITY;
    }
}

// Queries of a step: fewer where the sums of two gradients take most registers.
template <int kHead>
constexpr int kQueryStep = kHead > 64 ? 32 : 64;

template <int kHead>
__global__ void __launch_bounds__(gemm_detail::kThreads)
    key_gradients_kernel(const __grid_constant__ Operands in, const __grid_constant__ CudaView dk,
                         const __grid_constant__ CudaView dv, bool adds_dv, float scale) {
  constexpr int kStep = kQueryStep<kHead>;
  using Tile = HeadTile<Rounded, kHead>;
  using StepTile = HeadTile<Rounded, kHead, kStep>;
  extern __shared__ __align__(128) char shared_memory[];
  __shared__ float2 row_values[kStages][kStep];  // of a step's queries: log of the sum, and y . dy
  const auto k_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), v_at = k_at + Tile::kBytes,
             steps_at = v_at + Tile::kBytes;
  const int first = static_cast<int>(blockIdx.x) * kTile, kv_head = static_cast<int>(blockIdx.y);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = heads_per_group(in);
  const int64_t sequence = blockIdx.z;
  // Queries that see any of the keys.
  const int last_key = min(first + kTile, in.positions) - 1;
  const int end = in.window > 0 ? min(in.positions, last_key + in.window) : in.positions;
  const int first_step = first / kStep, steps_of_head = divide_up(end, kStep) - first_step;
  const int steps = group * steps_of_head;
  auto head_of = [&](int step) { return kv_head * group + step / steps_of_head; };
  auto first_query_of = [&](int step) { return (first_step + step % steps_of_head) * kStep; };
  auto q_at = [&](int step) { return steps_at + static_cast<uint32_t>(step % kStages * 2 * StepTile::kBytes); };
  auto load_step = [&](int step) {
    const int head = head_of(step), first_query = first_query_of(step);
    HeadRows<kHead>(in.q, in, sequence, head, in.heads).template load<kStep>(q_at(step), first_query);
    HeadRows<kHead>(in.dy, in, sequence, head, in.heads)
        .template load<kStep>(q_at(step) + StepTile::kBytes, first_query);
    if (threadIdx.x < kStep) {
      const int query = first_query + static_cast<int>(threadIdx.x);
      const int64_t row = first_of(in, sequence, head) + query;
      // One that does not exist weighs nothing.
      row_values[step % kStages][threadIdx.x] =
          query < in.positions ? float2{in.log_sums[row], in.along[row]} : float2{INFINITY, 0};
    }
  };
  HeadRows<kHead>(in.k, in, sequence, kv_head, in.kv_heads).template load<kTile>(k_at, first);
  HeadRows<kHead>(in.v, in, sequence, kv_head, in.kv_heads).template load<kTile>(v_at, first);
  load_step(0);
  commit_copies();

  const int first_key = first + warp * 16;
  FragmentValues<kHead> key_sums = {}, value_sums = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // as in forward_kernel
    if (step + 1 < steps) load_step(step + 1);
    commit_copies();
    FragmentValues<kStep> weights[1] = {}, products[1] = {};
    multiply_tiles<1, kStep, Tile>(weights, k_at, q_at(step), kBf16);
    mask_transposed<kStep>(first_key, first_query_of(step), in.window, weights[0]);
    const float2* rows = row_values[step % kStages] + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[0][j][i] = exp2_fast(weights[0][j][i] - rows[8 * j + i % 2].x);
    multiply_values<kHead, kStep>(value_sums, weights[0], q_at(step) + StepTile::kBytes, kBf16);
    multiply_tiles<1, kStep, Tile>(products, v_at, q_at(step) + StepTile::kBytes, kBf16);
#pragma unroll
    for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) weights[0][j][i] *= products[0][j][i] - rows[8 * j + i % 2].y;
    multiply_values<kHead, kStep>(key_sums, weights[0], q_at(step), kBf16);
  }
  store_sums<kHead>(key_sums, {scale, scale}, /*adds=*/false, in, sequence, first_key, kv_head, dk);
  store_sums<kHead>(value_sums, {1, 1}, adds_dv, in, sequence, first_key, kv_head, dv);
}

// A row is one head of one position: (rows, heads * head_dim) to (rows, heads * width), times factor.
struct RoundHeads {
  ConstCudaView from;
  float factor;
  int64_t heads, head_dim, width;
  Rounded* to;

  __device__ void operator()(int64_t row, int lane) const {
    const float* head = from.data + row / heads * from.stride + row % heads * head_dim;
    for (int64_t c = lane; c < width; c += 32)
      to[row * width + c] = __float2bfloat16_rn(c < head_dim ? head[c] * factor : 0.0f);
  }
};

// The same of dy, with y . dy of what is rounded.
struct RoundOutputGradients {
  ConstCudaView y, dy;
  int64_t heads, head_dim, width, positions;
  Rounded* to;
  float* along;

  __device__ void operator()(int64_t row, int lane) const {
    const int64_t at = row / heads, head = row % heads;
    const float *out = y.data + at * y.stride + head * head_dim, *gradient = dy.data + at * dy.stride + head * head_dim;
    const float sum = sum_over_row(width, lane, [&](int64_t c) {
      const Rounded rounded = __float2bfloat16_rn(c < head_dim ? gradient[c] : 0.0f);
      to[row * width + c] = rounded;
      return c < head_dim ? out[c] * __bfloat162float(rounded) : 0.0f;
    });
    if (lane == 0) along[(at / positions * heads + head) * positions + at % positions] = sum;
  }
};

int64_t padded_width(int64_t head_dim) { return head_dim <= 32 ? 32 : head_dim <= 64 ? 64 : 128; }

// body(std::integral_constant<int, kHead>) of a width of 32, 64 or 128.
template <typename Body>
void with_bf16_head(int64_t head_dim, const Body& body) {
  with_head_width(static_cast<int>(padded_width(head_dim)), [&]<int kHead>(std::integral_constant<int, kHead> width) {
    if constexpr (kHead <= kWidestBf16Head) body(width);
  });
}

dim3 grid_of(const BatchShape& batch, int64_t heads) {
  return dim3(static_cast<unsigned>(divide_up(batch.positions, kTile)), static_cast<unsigned>(heads),
              static_cast<unsigned>(batch.sequences));
}

}  // namespace

void CudaBf16Attention::reserve(std::span<const op::Attention> shapes, const BatchShape& batch) {
  int64_t wide = 0, narrow = 0, rows = 0;
  for (const op::Attention& shape : shapes) {
    const int64_t width = padded_width(shape.head_dim);
    wide = std::max(wide, batch.rows() * shape.heads * width);
    narrow = std::max(narrow, batch.rows() * shape.kv_heads * width);
    rows = std::max(rows, batch.rows() * shape.heads);
  }
  for (DeviceArray<Rounded>* array : {&q_, &dy_}) array->reserve(wide, "attention");
  for (DeviceArray<Rounded>* array : {&k_, &v_}) array->reserve(narrow, "attention");
  for (DeviceArray<float>* array : {&log_sums_, &along_}) array->reserve(rows, "attention");
}

Bf16AttentionOperands CudaBf16Attention::operands(const op::Attention& shape, const BatchShape& batch) const {
  return {q_.data(),
          k_.data(),
          v_.data(),
          dy_.data(),
          log_sums_.data(),
          along_.data(),
          static_cast<int>(batch.positions),
          static_cast<int>(shape.heads),
          static_cast<int>(shape.kv_heads),
          static_cast<int>(shape.window),
          static_cast<int>(shape.head_dim)};
}

void CudaBf16Attention::forward(ConstCudaView q, ConstCudaView k, ConstCudaView v, const op::Attention& shape,
                                const BatchShape& batch, bool is_precise, CudaView y, cudaStream_t stream) {
  reserve({&shape, 1}, batch);
  const int64_t width = padded_width(shape.head_dim);
  auto round = [&](ConstCudaView from, float factor, int64_t heads, Rounded* to) {
    launch_rows(batch.rows() * heads, RoundHeads{from, factor, heads, shape.head_dim, width, to}, stream);
  };
  round(q, shape.scale * std::numbers::log2e_v<float>, shape.heads, q_.data());
  round(k, 1, shape.kv_heads, k_.data());
  round(v, 1, shape.kv_heads, v_.data());
  with_bf16_head(shape.head_dim, [&]<int kHead>(std::integral_constant<int, kHead>) {
    constexpr int kSharedBytes = HeadTile<Rounded, kHead>::kBytes * (1 + 2 * kStages);
    const LaunchShape launch{grid_of(batch, shape.heads), gemm_detail::kThreads, kSharedBytes};
    if (is_precise)
      launch_kernel(forward_kernel<kHead, true>, launch, stream, operands(shape, batch), y);
    else
      launch_kernel(forward_kernel<kHead, false>, launch, stream, operands(shape, batch), y);
  });
}

void CudaBf16Attention::backward(ConstCudaView y, ConstCudaView dy, const op::Attention& shape, const BatchShape& batch,
                                 CudaView dq, CudaView dk, CudaView dv, bool adds_dv, cudaStream_t stream) {
  launch_rows(batch.rows() * shape.heads,
              RoundOutputGradients{y, dy, shape.heads, shape.head_dim, padded_width(shape.head_dim), batch.positions,
                                   dy_.data(), along_.data()},
              stream);
  with_bf16_head(shape.head_dim, [&]<int kHead>(std::integral_constant<int, kHead>) {
    constexpr int kTileBytes = HeadTile<Rounded, kHead>::kBytes;
    constexpr int kStepBytes = HeadTile<Rounded, kHead, kQueryStep<kHead>>::kBytes;
    launch_kernel(query_gradient_kernel<kHead>,
                  {grid_of(batch, shape.heads), gemm_detail::kThreads, kTileBytes * (2 + 2 * kStages)}, stream,
                  operands(shape, batch), dq, shape.scale);
    // Queries were scaled by log2(e) besides.
    launch_kernel(key_gradients_kernel<kHead>,
                  {grid_of(batch, shape.kv_heads), gemm_detail::kThreads, 2 * kTileBytes + 2 * kStages * kStepBytes},
                  stream, operands(shape, batch), dk, dv, adds_dv, std::numbers::ln2_v<float>);
  });
}

}  // namespace thimble
