// cuda_bf16_key_gradients_sm90.cu: see cuda_bf16_attention_sm90.cuh; what walks over keys: gradients of keys and
// values. Formulas in cuda_bf16_attention_mma.cu.
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sm90.cuh"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_tiles_sm90.cuh"

namespace thimble {
namespace {

using namespace bf16_attention_sm90;

// A tile of keys of one head, and the steps of queries that see them, of all heads that share them: early ones are seen
// by the most.
template <int kRows>
struct KeyTile {
  int first, first_step, steps_of_head, steps, kv_head, sequence;

  __device__ KeyTile(const Operands& in, int sequences, int index) {
    kv_head = index % in.kv_heads;
    sequence = index / in.kv_heads % sequences;
    first = index / (in.kv_heads * sequences) * kRows;
    const int last_key = min(first + kRows, in.positions) - 1;
    const int end = in.window > 0 ? min(in.positions, last_key + in.window) : in.positions;
    first_step = first / kStep;
    steps_of_head = divide_up(end, kStep) - first_step;
    steps = heads_per_group(in) * steps_of_head;
  }
  __device__ int head(const Operands& in, int step) const {
    return kv_head * heads_per_group(in) + step / steps_of_head;
  }
  __device__ int first_query(int step) const { return (first_step + step % steps_of_head) * kStep; }
  // Does any query of the step see any of a group's 64 keys?
  __device__ bool is_seen(const Operands& in, int step, int group) const {
    const int key = first + 64 * group, query = first_query(step);
    return key < in.positions && query + kStep > key && (in.window == 0 || query < key + 63 + in.window);
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// A step's queries' log of the sum, and y . dy; one that does not exist weighs nothing.
struct RowValues {
  float2 values[kStages][kStep];
};

// Of the kernel by keys: one warp.
template <typename Plan, int kGroups>
__device__ void load_keys_and_queries(const Plan& plan, RowValues& rows, const Operands& in, int sequences,
                                      const CUtensorMap& q, const CUtensorMap& k, const CUtensorMap& v,
                                      const CUtensorMap& dy) {
  const int lane = threadIdx.x % 32;
  Ring<kTileStages> tiles;
  Ring<kStages> ring;
  for (TileTurns turns(count_tiles(in, sequences, in.kv_heads, Plan::kRows)); turns.has_tile();
       turns.advance(), tiles.advance()) {
    const KeyTile<Plan::kRows> tile(in, sequences, turns.index);
    auto read_rows = [&](int step, float2(&to)[kStep / 32]) {
#pragma unroll
      for (int i = 0; i < kStep / 32; ++i) {
        const int query = tile.first_query(step) + 32 * i + lane;
        const int64_t row = first_of(in, tile.sequence, tile.head(in, step)) + query;
        to[i] =
            step < tile.steps && query < in.positions ? float2{in.log_sums[row], in.along[row]} : float2{INFINITY, 0};
      }
    };
    float2 next[kStep / 32];
    read_rows(0, next);
    if (lane == 0) {
      wait(plan.tile_empty + 8 * tiles.index, tiles.parity ^ 1);
      const CUtensorMap* maps[] = {&k, &v};
      load_tile<Plan, kGroups>(plan, tiles.index, maps, tile.kv_head, tile.first, tile.sequence);
    }
    for (int step = 0; step < tile.steps; ++step, ring.advance()) {
      float2 own[kStep / 32];
#pragma unroll
      for (int i = 0; i < kStep / 32; ++i) own[i] = next[i];
      read_rows(step + 1, next);
      wait(plan.empty + 8 * ring.index, ring.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kStep / 32; ++i) rows.values[ring.index][32 * i + lane] = own[i];
      if (lane == 0)
        load_step(plan, ring, q, dy, tile.head(in, step), tile.first_query(step), tile.sequence);
      else
        arrive(plan.full + 8 * ring.index);
    }
  }
}

template <typename Plan>
__device__ void add_key_gradients(const Plan& plan, const RowValues& rows, const Operands& in, int sequences,
                                  const Bf16View& dk, const Bf16View& dv, bool adds_dv, float scale, int group) {
  const int lane = threadIdx.x % 32, warp_row = group * 64 + threadIdx.x / 32 % 4 * 16;
  Ring<kTileStages> tiles;
  Steps<Plan> steps(plan);
  for (TileTurns turns(count_tiles(in, sequences, in.kv_heads, Plan::kRows)); turns.has_tile();
       turns.advance(), tiles.advance()) {
    const KeyTile<Plan::kRows> tile(in, sequences, turns.index);
    const int first = tile.first + warp_row;  // key
    const uint32_t keys = plan.tile_box(tiles.index, 0, group), values = plan.tile_box(tiles.index, 1, group);
    wait(plan.tile_full + 8 * tiles.index, tiles.parity);
    FragmentValues<kHead> key_sums = {}, value_sums = {};
    FragmentValues<kStep> weights, products;
    uint32_t packed_weights[kStep / 16][4], packed_scores[kStep / 16][4];
    for (int step = 0; step < tile.steps; ++step) {
      if (!tile.is_seen(in, step, group)) {
        wait_for_products<0>();
        hold(key_sums);
        hold(value_sums);
        steps.release();
        steps.pass_on(1);
        continue;
      }
      steps.wait_for_step();
      start_scores(weights, keys, steps.box(0));
      start_scores(products, values, steps.box(1));
      wait_for_products<1>();  // the scores, and sums of the step before
      hold(weights);
      hold(key_sums);
      hold(value_sums);
      steps.release();
      mask_transposed<kStep>(first, tile.first_query(step), in.window, weights);
      const float2* of_step = rows.values[steps.ring.index] + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          weights[j][i] = exp2_fast(weights[j][i] * in.score_scale - of_step[8 * j + i % 2].x);
      pack_fragment(weights, packed_weights);
      start_sums(value_sums, packed_weights, steps.box(1));
      wait_for_products<1>();
      hold(products);
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[j][i] *= products[j][i] - of_step[8 * j + i % 2].y;
      pack_fragment(weights, packed_scores);
      start_sums(key_sums, packed_scores, steps.box(0));
      steps.hold_and_advance();
    }
    wait_for_products<0>();
    hold(key_sums);
    hold(value_sums);
    steps.release();
    arrive_as_warp(plan.tile_empty + 8 * tiles.index);
    store_sums<kHead>(key_sums, scale, /*adds=*/false, in, tile.sequence, first, tile.kv_head, dk);
    store_sums<kHead>(value_sums, 1, adds_dv, in, tile.sequence, first, tile.kv_head, dv);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kGroups = 2;
using KeyPlan = Plan<kGroups, 2>;

__global__ void __launch_bounds__(KeyPlan::kThreads, 1)
    key_gradients_sm90_kernel(const __grid_constant__ Operands in, int sequences, const __grid_constant__ Bf16View dk,
                              const __grid_constant__ Bf16View dv, bool adds_dv, float scale,
                              const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                              const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dy) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  __shared__ RowValues rows;
  const KeyPlan plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
  initialise<KeyPlan, kGroups>(plan, /*loaders=*/32);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group < kGroups) {
    take_registers<kOwnRegisters<kGroups>>();
    add_key_gradients(plan, rows, in, sequences, dk, dv, adds_dv, scale, group);
  } else {
    give_registers<kLoaderRegisters<kGroups>>();
    if (threadIdx.x % 128 < 32) load_keys_and_queries<KeyPlan, kGroups>(plan, rows, in, sequences, q, k, v, dy);
  }
#endif
}

}  // namespace

void launch_key_gradients_sm90(const Bf16AttentionOperands& in, int64_t sequences, Bf16View dk, Bf16View dv,
                               bool adds_dv, float scale, cudaStream_t stream) {
  launch_kernel(key_gradients_sm90_kernel, persistent_launch<KeyPlan>(in, sequences, in.kv_heads), stream, in,
                static_cast<int>(sequences), dk, dv, adds_dv, scale, map_of(in.q, in.heads, in, sequences),
                map_of(in.k, in.kv_heads, in, sequences), map_of(in.v, in.kv_heads, in, sequences),
                map_of(in.dy, in.heads, in, sequences));
}

}  // namespace thimble
