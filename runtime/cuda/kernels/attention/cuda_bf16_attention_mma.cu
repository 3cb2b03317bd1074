// cuda_bf16_attention_mma.cu: see cuda_bf16_attention_mma.cuh.
// With s_ij = q_i . k_j, in units in which a weight is 2^s,
//   P_ij = 2^(s_ij - l_i),  y_i = sum_j P_ij v_j,  l_i = log2 sum_j 2^s_ij   (of 2^s as bf16, as y's sum has them)
//   dS_ij = P_ij (dy_i . v_j - y_i . dy_i),  dq_i = scale sum_j dS_ij k_j,  dk_j = scale sum_i dS_ij q_i,
//   dv_j = sum_i P_ij dy_i
// With XSA these are y before it, y + a v / |v| of what stays, where a = y . v / |v|.
// A CTA of four warps has 64 or 128 queries (or keys) of one head, each warp one or two fragments of 16 of them, and
// walks over the keys that they see (or the queries that see them, of all heads that share the keys) in steps, of which
// the next is on its way to shared memory while one is multiplied. What a step brings is read from there once for both
// fragments; one alone keeps more multiprocessors busy where there is little to do. Sums have the same order in both.
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_mma.cuh"

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_attention_tiles.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sums.cuh"

namespace thimble {
namespace {

using Rounded = __nv_bfloat16;
using gemm_detail::commit_copies;
using gemm_detail::multiply_tiles;
using gemm_detail::wait_for_copies;

constexpr const Rounded* kBf16 = nullptr;
constexpr int kTile = kAttentionTile, kStages = 2;

using Operands = Bf16AttentionOperands;

// Rows of one head of one window.
template <int kHead>
struct HeadRows {
  const Rounded* data;
  int64_t stride;
  int positions;

  __device__ HeadRows(const Bf16Heads& all, const Operands& in, int64_t sequence, int head)
      : data(all.data + sequence * in.positions * all.stride + head * kHead),
        stride(all.stride),
        positions(in.positions) {}
  template <int kRows>
  __device__ void load(uint32_t shared, int first) const {
    HeadTile<Rounded, kHead, kRows>::load(shared, data + first * stride, stride, positions - first);
  }
};

// Keys of a step forwards, and backwards, where the sums take more registers.
constexpr int kForwardStep = 64;
template <int kHead, int kFragments>
constexpr int kBackwardStep = kHead > 64 || kFragments > 1 ? 32 : 64;

// A CTA's tile of queries, and the steps of kKeys keys that they see: late ones see the most, so they come first.
template <int kFragments, int kKeys>
struct QueryTile {
  static constexpr int kQueries = kFragments * kTile;
  int first, first_key, steps, head, kv_head;
  int64_t sequence;

  __device__ explicit QueryTile(const Operands& in)
      : first(static_cast<int>(gridDim.z - 1 - blockIdx.z) * kQueries),
        head(static_cast<int>(blockIdx.x)),
        kv_head(head / heads_per_group(in)),
        sequence(blockIdx.y) {
    first_key = first_seen(first, in.window) / kKeys * kKeys;
    steps = divide_up(min(first + kQueries, in.positions) - first_key, kKeys);
  }
  // The first query of a fragment of this warp's.
  __device__ int query(int fragment) const {
    return first + (static_cast<int>(threadIdx.x) / 32 * kFragments + fragment) * 16;
  }
};

// The keys and values that a tile of queries sees, kKeys of them in a step, of which kStages lie in shared memory.
template <int kHead, int kKeys>
class KeySteps {
  using Tile = HeadTile<Rounded, kHead, kKeys>;

 public:
  static constexpr int kBytes = kStages * 2 * Tile::kBytes;

  template <typename QueryTile>
  __device__ KeySteps(const Operands& in, const QueryTile& tile, uint32_t shared)
      : k_(in.k, in, tile.sequence, tile.kv_head),
        v_(in.v, in, tile.sequence, tile.kv_head),
        first_(tile.first_key),
        shared_(shared) {}

  __device__ int first_key(int step) const { return first_ + step * kKeys; }
  __device__ uint32_t k_at(int step) const {
    return shared_ + static_cast<uint32_t>(step % kStages * 2 * Tile::kBytes);
  }
  __device__ uint32_t v_at(int step) const { return k_at(step) + Tile::kBytes; }
  __device__ void load(int step) const {
    k_.template load<kKeys>(k_at(step), first_key(step));
    v_.template load<kKeys>(v_at(step), first_key(step));
  }

 private:
  HeadRows<kHead> k_, v_;
  int first_;
  uint32_t shared_;
};

// Products of queries and keys become logarithms of weights to the base of 2.
template <int kKeys>
__device__ void scale_scores(float scale, FragmentValues<kKeys>& scores) {
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[j][i] *= scale;
}

template <int kHead, int kFragments>
__global__ void __launch_bounds__(gemm_detail::kThreads)
    forward_kernel(const __grid_constant__ Operands in, const __grid_constant__ Bf16View y, bool exclusive) {
  constexpr int kKeys = kForwardStep;
  using Tile = HeadTile<Rounded, kHead, kFragments * kTile>;
  extern __shared__ __align__(128) char shared_memory[];
  const auto q_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), steps_at = q_at + Tile::kBytes;
  const QueryTile<kFragments, kKeys> at(in);
  const int lane = threadIdx.x % 32;
  const HeadRows<kHead> q(in.q, in, at.sequence, at.head);
  const KeySteps<kHead, kKeys> keys(in, at, steps_at);
  q.template load<at.kQueries>(q_at, at.first);
  keys.load(0);
  commit_copies();

  FragmentValues<kHead> out[kFragments] = {};
  float peak[kFragments][2], sum[kFragments][2] = {};
#pragma unroll
  for (int f = 0; f < kFragments; ++f) peak[f][0] = peak[f][1] = -INFINITY;
  for (int step = 0; step < at.steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // the step has arrived for all, and all have left the one that is loaded next
    if (step + 1 < at.steps) keys.load(step + 1);
    commit_copies();
    FragmentValues<kKeys> scores[kFragments] = {};
    multiply_tiles<kFragments, kKeys, Tile>(scores, q_at, keys.k_at(step), kBf16);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      scale_scores<kKeys>(in.score_scale, scores[f]);
      mask_scores<kKeys>(at.query(f), keys.first_key(step), in.window, scores[f]);
      weigh<kHead, kKeys, Rounded>(scores[f], peak[f], sum[f], out[f]);
    }
    multiply_values<kHead, kKeys>(out, scores, keys.v_at(step), kBf16);
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = sum_over_lanes<4>(sum[f][half]), factor = 1 / all;
      const int position = at.query(f) + lane / 4 + half * 8;
      if (lane % 4 == 0 && position < in.positions)
        in.log_sums[first_of(in, at.sequence, at.head) + position] = peak[f][half] + log2f(all);
#pragma unroll
      for (int j = 0; j < kHead / 8; ++j) out[f][j][2 * half] *= factor, out[f][j][2 * half + 1] *= factor;
    }
    if (exclusive) remove_own_value<kHead>(out[f], in, at.sequence, at.query(f), at.head);
    store_outputs<kHead>(out[f], in, at.sequence, at.query(f), at.head, y);
  }
}

template <int kHead, int kFragments>
__global__ void __launch_bounds__(gemm_detail::kThreads)
    query_gradient_kernel(const __grid_constant__ Operands in, const __grid_constant__ Bf16View dq, float scale) {
  constexpr int kKeys = kBackwardStep<kHead, kFragments>;
  using Tile = HeadTile<Rounded, kHead, kFragments * kTile>;
  extern __shared__ __align__(128) char shared_memory[];
  const auto q_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), dy_at = q_at + Tile::kBytes,
             steps_at = dy_at + Tile::kBytes;
  const QueryTile<kFragments, kKeys> at(in);
  const int lane = threadIdx.x % 32;
  const HeadRows<kHead> q(in.q, in, at.sequence, at.head), dy(in.dy, in, at.sequence, at.head);
  const KeySteps<kHead, kKeys> keys(in, at, steps_at);
  q.template load<at.kQueries>(q_at, at.first);
  dy.template load<at.kQueries>(dy_at, at.first);
  keys.load(0);
  commit_copies();

  float log_sums[kFragments][2], along[kFragments][2];
#pragma unroll
  for (int f = 0; f < kFragments; ++f)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_of(in, at.sequence, at.head) + min(at.query(f) + lane / 4 + half * 8, in.positions - 1);
      log_sums[f][half] = in.log_sums[row];
      along[f][half] = in.along[row];
    }
  FragmentValues<kHead> sums[kFragments] = {};
  for (int step = 0; step < at.steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // as in forward_kernel
    if (step + 1 < at.steps) keys.load(step + 1);
    commit_copies();
    FragmentValues<kKeys> scores[kFragments] = {}, products[kFragments] = {};
    multiply_tiles<kFragments, kKeys, Tile>(scores, q_at, keys.k_at(step), kBf16);
    multiply_tiles<kFragments, kKeys, Tile>(products, dy_at, keys.v_at(step), kBf16);
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      mask_scores<kKeys>(at.query(f), keys.first_key(step), in.window, scores[f]);
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          scores[f][j][i] =
              exp2_fast(scores[f][j][i] * in.score_scale - log_sums[f][i / 2]) * (products[f][j][i] - along[f][i / 2]);
    }
    multiply_values<kHead, kKeys>(sums, scores, keys.k_at(step), kBf16);
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f)
    store_sums<kHead>(sums[f], scale, /*adds=*/false, in, at.sequence, at.query(f), at.head, dq);
}

template <int kHead, int kFragments>
__global__ void __launch_bounds__(gemm_detail::kThreads)
    key_gradients_kernel(const __grid_constant__ Operands in, const __grid_constant__ Bf16View dk,
                         const __grid_constant__ Bf16View dv, bool adds_dv, float scale) {
  constexpr int kStep = kBackwardStep<kHead, kFragments>, kKeys = kFragments * kTile;
  using Tile = HeadTile<Rounded, kHead, kKeys>;
  using StepTile = HeadTile<Rounded, kHead, kStep>;
  extern __shared__ __align__(128) char shared_memory[];
  __shared__ float2 row_values[kStages][kStep];  // of a step's queries: log of the sum, and y . dy
  const auto k_at = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), v_at = k_at + Tile::kBytes,
             steps_at = v_at + Tile::kBytes;
  const int first = static_cast<int>(blockIdx.z) * kKeys, kv_head = static_cast<int>(blockIdx.x);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = heads_per_group(in);
  const int64_t sequence = blockIdx.y;
  // Queries that see any of the keys.
  const int last_key = min(first + kKeys, in.positions) - 1;
  const int end = in.window > 0 ? min(in.positions, last_key + in.window) : in.positions;
  const int first_step = first / kStep, steps_of_head = divide_up(end, kStep) - first_step;
  const int steps = group * steps_of_head;
  auto head_of = [&](int step) { return kv_head * group + step / steps_of_head; };
  auto first_query_of = [&](int step) { return (first_step + step % steps_of_head) * kStep; };
  auto q_at = [&](int step) { return steps_at + static_cast<uint32_t>(step % kStages * 2 * StepTile::kBytes); };
  auto load_step = [&](int step) {
    const int head = head_of(step), first_query = first_query_of(step);
    HeadRows<kHead>(in.q, in, sequence, head).template load<kStep>(q_at(step), first_query);
    HeadRows<kHead>(in.dy, in, sequence, head).template load<kStep>(q_at(step) + StepTile::kBytes, first_query);
    if (threadIdx.x < kStep) {
      const int query = first_query + static_cast<int>(threadIdx.x);
      const int64_t row = first_of(in, sequence, head) + query;
      // One that does not exist weighs nothing.
      row_values[step % kStages][threadIdx.x] =
          query < in.positions ? float2{in.log_sums[row], in.along[row]} : float2{INFINITY, 0};
    }
  };
  auto first_key_of = [&](int fragment) { return first + (warp * kFragments + fragment) * 16; };
  HeadRows<kHead>(in.k, in, sequence, kv_head).template load<kKeys>(k_at, first);
  HeadRows<kHead>(in.v, in, sequence, kv_head).template load<kKeys>(v_at, first);
  load_step(0);
  commit_copies();

  FragmentValues<kHead> key_sums[kFragments] = {}, value_sums[kFragments] = {};
  for (int step = 0; step < steps; ++step) {
    wait_for_copies<0>();
    __syncthreads();  // as in forward_kernel
    if (step + 1 < steps) load_step(step + 1);
    commit_copies();
    FragmentValues<kStep> weights[kFragments] = {};
    multiply_tiles<kFragments, kStep, Tile>(weights, k_at, q_at(step), kBf16);
    const float2* rows = row_values[step % kStages] + lane % 4 * 2;
#pragma unroll
    for (int f = 0; f < kFragments; ++f) {
      mask_transposed<kStep>(first_key_of(f), first_query_of(step), in.window, weights[f]);
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          weights[f][j][i] = exp2_fast(weights[f][j][i] * in.score_scale - rows[8 * j + i % 2].x);
    }
    multiply_values<kHead, kStep>(value_sums, weights, q_at(step) + StepTile::kBytes, kBf16);
    FragmentValues<kStep> products[kFragments] = {};
    multiply_tiles<kFragments, kStep, Tile>(products, v_at, q_at(step) + StepTile::kBytes, kBf16);
#pragma unroll
    for (int f = 0; f < kFragments; ++f)
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[f][j][i] *= products[f][j][i] - rows[8 * j + i % 2].y;
    multiply_values<kHead, kStep>(key_sums, weights, q_at(step), kBf16);
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    store_sums<kHead>(key_sums[f], scale, /*adds=*/false, in, sequence, first_key_of(f), kv_head, dk);
    store_sums<kHead>(value_sums[f], 1, adds_dv, in, sequence, first_key_of(f), kv_head, dv);
  }
}

// body(std::integral_constant<int, kHead>) of a width of 32, 64 or 128.
template <typename Body>
void with_bf16_head(int64_t head_dim, const Body& body) {
  with_head_width(static_cast<int>(bf16_head_width(head_dim)),
                  [&]<int kHead>(std::integral_constant<int, kHead> width) {
                    if constexpr (kHead <= kWidestBf16Head) body(width);
                  });
}

// body(std::integral_constant<int, kFragments>) of as many fragments a warp as pay.
template <int kHead, typename Body>
void with_fragments(const Operands& in, int64_t sequences, int64_t heads, const Body& body) {
  // Tiles of twice the rows, at least so many, keep all multiprocessors busy; wider heads take more registers than
  // there are.
  constexpr int64_t kLeastTiles = 512;
  if constexpr (kHead <= 64) {
    if (divide_up(in.positions, 2 * kTile) * heads * sequences >= kLeastTiles)
      return body(std::integral_constant<int, 2>());
  }
  body(std::integral_constant<int, 1>());
}

// Tiles that walk far come first, those of all heads and windows.
LaunchShape launch_of(const Operands& in, int64_t sequences, int64_t heads, int fragments, int shared_bytes) {
  return {dim3(static_cast<unsigned>(heads), static_cast<unsigned>(sequences),
               static_cast<unsigned>(divide_up(in.positions, fragments * kTile))),
          gemm_detail::kThreads, shared_bytes};
}

}  // namespace

void launch_attention_forward_mma(const Bf16AttentionOperands& in, int64_t sequences, bool exclusive, Bf16View y,
                                  cudaStream_t stream) {
  with_bf16_head(in.head_dim, [&]<int kHead>(std::integral_constant<int, kHead>) {
    with_fragments<kHead>(in, sequences, in.heads, [&]<int kFragments>(std::integral_constant<int, kFragments>) {
      constexpr int kSharedBytes =
          HeadTile<Rounded, kHead, kFragments * kTile>::kBytes + KeySteps<kHead, kForwardStep>::kBytes;
      launch_kernel(forward_kernel<kHead, kFragments>, launch_of(in, sequences, in.heads, kFragments, kSharedBytes),
                    stream, in, y, exclusive);
    });
  });
}

void launch_query_gradient_mma(const Bf16AttentionOperands& in, int64_t sequences, Bf16View dq, float scale,
                               cudaStream_t stream) {
  with_bf16_head(in.head_dim, [&]<int kHead>(std::integral_constant<int, kHead>) {
    with_fragments<kHead>(in, sequences, in.heads, [&]<int kFragments>(std::integral_constant<int, kFragments>) {
      constexpr int kSharedBytes = 2 * HeadTile<Rounded, kHead, kFragments * kTile>::kBytes +
                                   KeySteps<kHead, kBackwardStep<kHead, kFragments>>::kBytes;
      launch_kernel(query_gradient_kernel<kHead, kFragments>,
                    launch_of(in, sequences, in.heads, kFragments, kSharedBytes), stream, in, dq, scale);
    });
  });
}

void launch_key_gradients_mma(const Bf16AttentionOperands& in, int64_t sequences, Bf16View dk, Bf16View dv,
                              bool adds_dv, float scale, cudaStream_t stream) {
  with_bf16_head(in.head_dim, [&]<int kHead>(std::integral_constant<int, kHead>) {
    with_fragments<kHead>(in, sequences, in.kv_heads, [&]<int kFragments>(std::integral_constant<int, kFragments>) {
      constexpr int kSharedBytes = 2 * HeadTile<Rounded, kHead, kFragments * kTile>::kBytes +
                                   2 * kStages * HeadTile<Rounded, kHead, kBackwardStep<kHead, kFragments>>::kBytes;
      launch_kernel(key_gradients_kernel<kHead, kFragments>,
                    launch_of(in, sequences, in.kv_heads, kFragments, kSharedBytes), stream, in, dk, dv, adds_dv,
                    scale);
    });
  });
}

}  // namespace thimble
