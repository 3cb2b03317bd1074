// cuda_window_attention_sm90.cu: flash attention on Hopper's tensor cores for heads of 64 columns in bf16, as
// FlashAttention-3 (Shah et al., arXiv 2407.08608) orders it: the scores of the next keys are multiplied while the
// softmax of these runs. Same operands and contract as cuda_window_attention.cu.
//
// One CTA per kGroups * 64 queries of one head: a loader thread brings tiles of 128 keys and values into a ring, each
// of kGroups warpgroups walks over them with its own 64 queries.
#include "runtime/cuda_attention.h"
#include "runtime/cuda_sm90.cuh"

namespace thimble {
namespace {

// 160 and 32 registers per thread of the warpgroups fill the multiprocessor's 65,536.
constexpr int kHead = 64, kGroups = 3, kQueries = 64 * kGroups, kKeys = 128, kStages = 3;
constexpr int kQueryBytes = kQueries * kHead * 2, kTileBytes = kKeys * kHead * 2;
constexpr int kThreads = 128 * (kGroups + 1);
constexpr int kSharedBytes = 1024 + kQueryBytes + 2 * kStages * kTileBytes + 256;  // with alignment and barriers

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

constexpr float kLog2E = 1.4426950408889634f;

using namespace sm90;

struct Plan {
  uint32_t queries, keys, values, queries_full, keys_full, values_full, keys_empty, values_empty;
  int head, kv_head, sequence, first_query, first_position, steps;

  __device__ Plan(uint32_t memory, const AttentionOperands<__nv_bfloat16>& operands) {
    queries = (memory + 1023) / 1024 * 1024;
    keys = queries + kQueryBytes;
    values = keys + kStages * kTileBytes;
    queries_full = values + kStages * kTileBytes;
    keys_full = queries_full + 8;
    values_full = keys_full + 8 * kStages;
    keys_empty = values_full + 8 * kStages;
    values_empty = keys_empty + 8 * kStages;
    head = static_cast<int>(blockIdx.x);
    kv_head = head / (operands.heads / operands.kv_heads);
    sequence = static_cast<int>(blockIdx.y);
    // Late tiles see the most keys; starting with them balances the multiprocessors.
    first_query = static_cast<int>(gridDim.z - 1 - blockIdx.z) * kQueries;
    first_position = *operands.first + operands.offset + first_query;
    steps = divide_up(first_position + min(kQueries, operands.positions - first_query), kKeys);
  }
};

__device__ void load_tiles(const Plan& plan, const AttentionOperands<__nv_bfloat16>& operands,
                           const CUtensorMap& queries, const CUtensorMap& keys) {
  expect_bytes(plan.queries_full, kQueryBytes);
  load_box(plan.queries, queries, plan.head * kHead, plan.sequence * operands.positions + plan.first_query,
           plan.queries_full);
  Ring<kStages> ring;
  int row = plan.sequence * static_cast<int>(operands.capacity);
  for (int step = 0; step < plan.steps; ++step, ring.advance()) {
    uint32_t full = plan.keys_full + 8 * ring.index;
    wait(plan.keys_empty + 8 * ring.index, ring.parity ^ 1);
    expect_bytes(full, kTileBytes);
    load_box(plan.keys + ring.index * kTileBytes, keys, plan.kv_head * kHead, row + step * kKeys, full);
    full = plan.values_full + 8 * ring.index;
    wait(plan.values_empty + 8 * ring.index, ring.parity ^ 1);
    expect_bytes(full, kTileBytes);
    load_box(plan.values + ring.index * kTileBytes, keys, (operands.kv_heads + plan.kv_head) * kHead,
             row + step * kKeys, full);
  }
}

// scores (64, 128) = Q K^T, not waited for.
__device__ void start_scores(FragmentValues<kKeys>& scores, uint32_t queries, uint32_t keys) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k) multiply_async(scores, operand(queries) + 2 * k, operand(keys) + 2 * k, k > 0);
  commit_products();
}

// out (64, 64) += P V, not waited for.
__device__ void start_values(FragmentValues<kHead>& out, const uint32_t (&p)[kKeys / 16][4], uint32_t values) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k) multiply_async(out, p[k], operand(values + k * 16 * kHead * 2), 1);
  commit_products();
}

// 2^x; results below the smallest normal number become 0.
__device__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

struct Softmax {
  float peak[2] = {-INFINITY, -INFINITY}, sum[2] = {};
  float old_factor[2];

  // Turns scores into exponentials above the running maximum. Rows of this lane: the first is at `position`.
  __device__ void step(FragmentValues<kKeys>& scores, int first_key, int position, int first_position, float scale) {
    int first_column = first_key + threadIdx.x % 4 * 2;
    if (first_key + kKeys - 1 > first_position) {  // the diagonal passes here
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (first_column + 8 * j + i % 2 > position + i / 2 * 8) scores[j][i] = -INFINITY;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = peak[half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      largest = max_over_lanes<4>(largest);
      old_factor[half] = exp2_fast((peak[half] - largest) * scale);  // 0 at the first step
      peak[half] = largest;
      float base = largest * scale, added = 0;
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[j][i] = exp2_fast(fmaf(scores[j][i], scale, -base));
          added += scores[j][i];
        }
      sum[half] = sum[half] * old_factor[half] + added;
    }
  }
};

__device__ void pack(const FragmentValues<kKeys>& scores, uint32_t (&p)[kKeys / 16][4]) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      __nv_bfloat162 pair =
          __floats2bfloat162_rn(scores[2 * k + i / 2][i % 2 * 2], scores[2 * k + i / 2][i % 2 * 2 + 1]);
      p[k][i] = *reinterpret_cast<uint32_t*>(&pair);
    }
}

__device__ void attend(const Plan& plan, const AttentionOperands<__nv_bfloat16>& operands, int group) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  int row = group * 64 + warp * 16 + lane / 4;  // of the CTA's queries
  int position = plan.first_position + row, group_position = plan.first_position + group * 64;
  float scale = operands.scale * kLog2E;
  uint32_t queries = plan.queries + group * 64 * kHead * 2;
  bool releases = threadIdx.x % 128 == 0;

  FragmentValues<kHead> out = {};
  FragmentValues<kKeys> scores;
  uint32_t p[kKeys / 16][4];
  Softmax softmax;
  Ring<kStages> keys, values;
  wait(plan.queries_full, 0);
  wait(plan.keys_full, 0);
  start_scores(scores, queries, plan.keys);
  wait_for_products<0>();
  if (releases) arrive(plan.keys_empty);
  keys.advance();
  softmax.step(scores, 0, position, group_position, scale);
  pack(scores, p);
  for (int step = 1; step < plan.steps; ++step) {
    wait(plan.keys_full + 8 * keys.index, keys.parity);
    start_scores(scores, queries, plan.keys + keys.index * kTileBytes);
    wait(plan.values_full + 8 * values.index, values.parity);
    start_values(out, p, plan.values + values.index * kTileBytes);
    wait_for_products<1>();  // the scores
    if (releases) arrive(plan.keys_empty + 8 * keys.index);
    keys.advance();
    softmax.step(scores, step * kKeys, position, group_position, scale);
    wait_for_products<0>();
    if (releases) arrive(plan.values_empty + 8 * values.index);
    values.advance();
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) out[j][i] *= softmax.old_factor[i / 2];
    pack(scores, p);
  }
  wait(plan.values_full + 8 * values.index, values.parity);
  start_values(out, p, plan.values + values.index * kTileBytes);
  wait_for_products<0>();

  int kv_stride = 2 * operands.kv_heads * kHead;
  const __nv_bfloat16* value =
      operands.keys + plan.sequence * operands.capacity * kv_stride + (operands.kv_heads + plan.kv_head) * kHead;
  int last_position = plan.first_position + operands.positions - plan.first_query - 1;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    bool exists = plan.first_query + row + 8 * half < operands.positions;
    float inverse = 1 / sum_over_lanes<4>(softmax.sum[half]), along = 0, squares = 0;
    const __nv_bfloat16* own =
        value + static_cast<int64_t>(min(position + 8 * half, last_position)) * kv_stride + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      out[j][2 * half] *= inverse;
      out[j][2 * half + 1] *= inverse;
      if (operands.exclusive) {
        float2 v = load_pair(own + 8 * j);
        along += out[j][2 * half] * v.x + out[j][2 * half + 1] * v.y;
        squares += v.x * v.x + v.y * v.y;
      }
    }
    float removed = 0;
    if (operands.exclusive) {
      float length = fmaxf(sqrtf(sum_over_lanes<4>(squares)), 1e-12f);
      removed = sum_over_lanes<4>(along) / length / length;
    }
    if (!exists) continue;
    __nv_bfloat16* to = operands.query +
                        (static_cast<int64_t>(plan.sequence) * operands.positions + plan.first_query + row + 8 * half) *
                            operands.heads * kHead +
                        plan.head * kHead + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kHead / 8; ++j) {
      float2 v = operands.exclusive ? load_pair(own + 8 * j) : float2{0, 0};
      store_pair(to + 8 * j, {out[j][2 * half] - removed * v.x, out[j][2 * half + 1] - removed * v.y});
    }
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

__global__ void __launch_bounds__(kThreads, 1)
    window_attention_sm90_kernel(const AttentionOperands<__nv_bfloat16> operands,
                                 const __grid_constant__ CUtensorMap queries,
                                 const __grid_constant__ CUtensorMap keys) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  Plan plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), operands);
  if (threadIdx.x == 0) {
    initialise_barrier(plan.queries_full, 1);
    for (int stage = 0; stage < kStages; ++stage) {
      initialise_barrier(plan.keys_full + 8 * stage, 1);
      initialise_barrier(plan.values_full + 8 * stage, 1);
      initialise_barrier(plan.keys_empty + 8 * stage, kGroups);
      initialise_barrier(plan.values_empty + 8 * stage, kGroups);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  __syncthreads();
  int group = static_cast<int>(threadIdx.x) / 128;
  if (group < kGroups) {
    take_registers<160>();
    attend(plan, operands, group);
  } else {
    give_registers<32>();
    if (threadIdx.x % 128 == 0) load_tiles(plan, operands, queries, keys);
  }
#endif
}

}  // namespace

bool launch_window_attention_sm90(const AttentionOperands<__nv_bfloat16>& operands, int head_width,
                                  cudaStream_t stream) {
  if (head_width != kHead || !has_sm90_kernels()) return false;
  check_cuda(
      cudaFuncSetAttribute(window_attention_sm90_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  int64_t query_columns = operands.heads * kHead, kv_columns = 2 * operands.kv_heads * kHead;
  CUtensorMap queries = make_tensor_map(operands.query, static_cast<int64_t>(operands.sequences) * operands.positions,
                                        query_columns, query_columns, kQueries);
  CUtensorMap keys =
      make_tensor_map(operands.keys, operands.sequences * operands.capacity, kv_columns, kv_columns, kKeys);
  dim3 grid(static_cast<unsigned>(operands.heads), static_cast<unsigned>(operands.sequences),
            static_cast<unsigned>(divide_up(operands.positions, kQueries)));
  window_attention_sm90_kernel<<<grid, kThreads, kSharedBytes, stream>>>(operands, queries, keys);
  check_cuda(cudaGetLastError());
  return true;
}

}  // namespace thimble
