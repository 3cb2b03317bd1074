// cuda_bf16_attention_sm90.cu: see cuda_bf16_attention_sm90.cuh; what walks over queries: outputs and their gradients.
// Formulas in cuda_bf16_attention_mma.cu.
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sm90.cuh"

#include "runtime/cuda/kernels/attention/cuda_bf16_attention_tiles_sm90.cuh"

namespace thimble {
namespace {

using namespace bf16_attention_sm90;

// A tile of queries of one head, and the steps of keys that they see: late ones see the most, so they come first.
template <int kRows>
struct QueryTile {
  int first, first_key, steps, head, kv_head, sequence;

  __device__ QueryTile(const Operands& in, int sequences, int index) {
    const int heads = in.heads * sequences, tiles = divide_up(in.positions, kRows);
    head = index % in.heads;
    kv_head = head / heads_per_group(in);
    sequence = index / in.heads % sequences;
    first = (tiles - 1 - index / heads) * kRows;
    first_key = first_seen(first, in.window) / kStep * kStep;
    steps = divide_up(min(first + kRows, in.positions) - first_key, kStep);
  }
  // The first of the steps that a group's 64 queries see, and the one after the last; none if it has no queries.
  __device__ int2 of_group(const Operands& in, int group) const {
    const int query = first + 64 * group;
    if (query >= in.positions) return {steps, steps};
    return {(first_seen(query, in.window) / kStep * kStep - first_key) / kStep,
            divide_up(min(query + 64, in.positions) - first_key, kStep)};
  }
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Of the kernels by queries: one thread.
template <typename Plan, int kGroups, int kTileBoxes>
__device__ void load_queries_and_keys(const Plan& plan, const Operands& in, int sequences,
                                      const CUtensorMap* const (&tile_maps)[kTileBoxes], const CUtensorMap& k,
                                      const CUtensorMap& v) {
  Ring<kTileStages> tiles;
  Ring<kStages> ring;
  for (TileTurns turns(count_tiles(in, sequences, in.heads, Plan::kRows)); turns.has_tile();
       turns.advance(), tiles.advance()) {
    const QueryTile<Plan::kRows> tile(in, sequences, turns.index);
    wait(plan.tile_empty + 8 * tiles.index, tiles.parity ^ 1);
    load_tile<Plan, kGroups>(plan, tiles.index, tile_maps, tile.head, tile.first, tile.sequence);
    for (int step = 0; step < tile.steps; ++step, ring.advance()) {
      wait(plan.empty + 8 * ring.index, ring.parity ^ 1);
      load_step(plan, ring, k, v, tile.kv_head, tile.first_key + step * kStep, tile.sequence);
    }
  }
}

// The running maximum of a lane's two rows of scores, which become weights above the largest so far, and their sum.
struct RunningSoftmax {
  float peaks[2] = {-INFINITY, -INFINITY}, sums[2] = {};
  float factors[2];  // what the last ones' growth leaves of earlier weights

  // `scale`: scores times it are logarithms to the base of 2; positive.
  __device__ void weigh(FragmentValues<kStep>& scores, float scale) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = peaks[half];
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j) largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      largest = max_over_lanes<4>(largest);
      const float base = largest == -INFINITY ? 0 : largest * scale;  // a row may see none of these keys
      factors[half] = exp2_fast(peaks[half] * scale - base);          // 0 at the first step
      peaks[half] = largest;
      sums[half] *= factors[half];
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) scores[j][i] = exp2_fast(scores[j][i] * scale - base);
    }
  }
  // Of the weights as they are multiplied.
  __device__ void add(const uint32_t (&weights)[kStep / 16][4]) {
    float added[2] = {};
#pragma unroll
    for (int k = 0; k < kStep / 16; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float2 pair = unpacked<Rounded>(weights[k][i]);
        added[i % 2] += pair.x + pair.y;
      }
    sums[0] += added[0], sums[1] += added[1];
  }
  // What was added up with earlier weights, once their products are there.
  __device__ void rescale(FragmentValues<kHead>& out) const {
    if (!__any_sync(~0u, factors[0] != 1 || factors[1] != 1)) return;
#pragma unroll
    for (auto& values : out)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] *= factors[i / 2];
  }
};

template <typename Plan>
__device__ void add_outputs(const Plan& plan, const Operands& in, int sequences, bool exclusive, const Bf16View& y,
                            int group) {
  const int lane = threadIdx.x % 32, warp_row = group * 64 + threadIdx.x / 32 % 4 * 16;
  Ring<kTileStages> tiles;
  Steps<Plan> steps(plan);
  for (TileTurns turns(count_tiles(in, sequences, in.heads, Plan::kRows)); turns.has_tile();
       turns.advance(), tiles.advance()) {
    const QueryTile<Plan::kRows> tile(in, sequences, turns.index);
    const int2 own = tile.of_group(in, group);
    const int first = tile.first + warp_row;  // query
    const uint32_t queries = plan.tile_box(tiles.index, 0, group), tile_empty = plan.tile_empty + 8 * tiles.index;
    wait(plan.tile_full + 8 * tiles.index, tiles.parity);
    steps.pass_on(own.x);
    if (own.x == own.y) {
      arrive_as_warp(tile_empty);
      continue;
    }
    FragmentValues<kHead> out = {};
    FragmentValues<kStep> scores;
    uint32_t weights[kStep / 16][4];
    RunningSoftmax softmax;
    uint32_t values = 0;
    for (int step = own.x; step < own.y; ++step) {
      steps.wait_for_step();
      start_scores(scores, queries, steps.box(0));
      if (step > own.x) {
        start_sums(out, weights, values);
        wait_for_products<1>();
      } else {
        wait_for_products<0>();
      }
      hold(scores);
      mask_scores<kStep>(first, tile.first_key + step * kStep, in.window, scores);
      softmax.weigh(scores, in.score_scale);
      if (step > own.x) {
        hold(scores);  // exponentials hide the products' time
        wait_for_products<0>();
        hold(out);
        steps.release();
        softmax.rescale(out);
      }
      pack_fragment(scores, weights);
      softmax.add(weights);
      values = steps.box(1);
      steps.hold_and_advance();
    }
    start_sums(out, weights, values);
    wait_for_products<0>();
    hold(out);
    steps.release();
    arrive_as_warp(tile_empty);
    steps.pass_on(tile.steps - own.y);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float all = sum_over_lanes<4>(softmax.sums[half]), factor = 1 / all;
      const int position = first + lane / 4 + half * 8;
      if (lane % 4 == 0 && position < in.positions)
        in.log_sums[first_of(in, tile.sequence, tile.head) + position] =
            softmax.peaks[half] * in.score_scale + log2f(all);
#pragma unroll
      for (int j = 0; j < kHead / 8; ++j) out[j][2 * half] *= factor, out[j][2 * half + 1] *= factor;
    }
    if (exclusive) remove_own_value<kHead>(out, in, tile.sequence, first, tile.head);
    store_outputs<kHead>(out, in, tile.sequence, first, tile.head, y);
  }
}

template <typename Plan>
__device__ void add_query_gradients(const Plan& plan, const Operands& in, int sequences, const Bf16View& dq,
                                    float scale, int group) {
  const int lane = threadIdx.x % 32, warp_row = group * 64 + threadIdx.x / 32 % 4 * 16;
  Ring<kTileStages> tiles;
  Steps<Plan> steps(plan);
  for (TileTurns turns(count_tiles(in, sequences, in.heads, Plan::kRows)); turns.has_tile();
       turns.advance(), tiles.advance()) {
    const QueryTile<Plan::kRows> tile(in, sequences, turns.index);
    const int2 own = tile.of_group(in, group);
    const int first = tile.first + warp_row;  // query
    float log_sums[2], along[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = first_of(in, tile.sequence, tile.head) + min(first + lane / 4 + half * 8, in.positions - 1);
      log_sums[half] = in.log_sums[row];
      along[half] = in.along[row];
    }
    const uint32_t queries = plan.tile_box(tiles.index, 0, group), gradients = plan.tile_box(tiles.index, 1, group),
                   tile_empty = plan.tile_empty + 8 * tiles.index;
    wait(plan.tile_full + 8 * tiles.index, tiles.parity);
    steps.pass_on(own.x);
    if (own.x == own.y) {
      arrive_as_warp(tile_empty);
      continue;
    }
    FragmentValues<kHead> sums = {};
    FragmentValues<kStep> scores, products;
    uint32_t packed_scores[kStep / 16][4];
    for (int step = own.x; step < own.y; ++step) {
      steps.wait_for_step();
      start_scores(scores, queries, steps.box(0));
      start_scores(products, gradients, steps.box(1));
      wait_for_products<1>();  // the scores, and sums of the step before
      hold(scores);
      hold(sums);
      steps.release();
      mask_scores<kStep>(first, tile.first_key + step * kStep, in.window, scores);
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[j][i] = exp2_fast(scores[j][i] * in.score_scale - log_sums[i / 2]);
      hold(scores);
      wait_for_products<0>();
      hold(products);
#pragma unroll
      for (int j = 0; j < kStep / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) scores[j][i] *= products[j][i] - along[i / 2];
      pack_fragment(scores, packed_scores);
      start_sums(sums, packed_scores, steps.box(0));
      steps.hold_and_advance();
    }
    wait_for_products<0>();
    hold(sums);
    steps.release();
    arrive_as_warp(tile_empty);
    steps.pass_on(tile.steps - own.y);
    store_sums<kHead>(sums, scale, /*adds=*/false, in, tile.sequence, first, tile.head, dq);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

constexpr int kGroups = 3;
using ForwardPlan = Plan<kGroups, 1>;
using QueryPlan = Plan<kGroups, 2>;

__global__ void __launch_bounds__(ForwardPlan::kThreads, 1)
    attention_forward_sm90_kernel(const __grid_constant__ Operands in, int sequences, bool exclusive,
                                  const __grid_constant__ Bf16View y, const __grid_constant__ CUtensorMap q,
                                  const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  const ForwardPlan plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
  initialise<ForwardPlan, kGroups>(plan, /*loaders=*/1);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group < kGroups) {
    take_registers<kOwnRegisters<kGroups>>();
    add_outputs(plan, in, sequences, exclusive, y, group);
  } else {
    give_registers<kLoaderRegisters<kGroups>>();
    const CUtensorMap* maps[] = {&q};
    if (threadIdx.x % 128 == 0) load_queries_and_keys<ForwardPlan, kGroups>(plan, in, sequences, maps, k, v);
  }
#endif
}

__global__ void __launch_bounds__(QueryPlan::kThreads, 1)
    query_gradient_sm90_kernel(const __grid_constant__ Operands in, int sequences, const __grid_constant__ Bf16View dq,
                               float scale, const __grid_constant__ CUtensorMap q,
                               const __grid_constant__ CUtensorMap dy, const __grid_constant__ CUtensorMap k,
                               const __grid_constant__ CUtensorMap v) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  const QueryPlan plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
  initialise<QueryPlan, kGroups>(plan, /*loaders=*/1);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group < kGroups) {
    take_registers<kOwnRegisters<kGroups>>();
    add_query_gradients(plan, in, sequences, dq, scale, group);
  } else {
    give_registers<kLoaderRegisters<kGroups>>();
    const CUtensorMap* maps[] = {&q, &dy};
    if (threadIdx.x % 128 == 0) load_queries_and_keys<QueryPlan, kGroups>(plan, in, sequences, maps, k, v);
  }
#endif
}

}  // namespace

void launch_attention_forward_sm90(const Bf16AttentionOperands& in, int64_t sequences, bool exclusive, Bf16View y,
                                   cudaStream_t stream) {
  launch_kernel(attention_forward_sm90_kernel, persistent_launch<ForwardPlan>(in, sequences, in.heads), stream, in,
                static_cast<int>(sequences), exclusive, y, map_of(in.q, in.heads, in, sequences),
                map_of(in.k, in.kv_heads, in, sequences), map_of(in.v, in.kv_heads, in, sequences));
}

void launch_query_gradient_sm90(const Bf16AttentionOperands& in, int64_t sequences, Bf16View dq, float scale,
                                cudaStream_t stream) {
  launch_kernel(query_gradient_sm90_kernel, persistent_launch<QueryPlan>(in, sequences, in.heads), stream, in,
                static_cast<int>(sequences), dq, scale, map_of(in.q, in.heads, in, sequences),
                map_of(in.dy, in.heads, in, sequences), map_of(in.k, in.kv_heads, in, sequences),
                map_of(in.v, in.kv_heads, in, sequences));
}

}  // namespace thimble
