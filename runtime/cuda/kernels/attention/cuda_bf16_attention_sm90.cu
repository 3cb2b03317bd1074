// cuda_bf16_attention_sm90.cu: see cuda_bf16_attention_sm90.cuh; formulas in cuda_bf16_attention.cu. One CTA per
// multiprocessor takes tiles of queries (or keys) of one head, one after the other. Its warpgroups:
//
//   kGroups   of 64 rows each: products of what a step brings (wgmma), the tile's own rows and weights as left factors
//                                                                      <- tile_full, full   -> tile_empty, empty
//   1         a warp that loads: the tile's rows, then steps of 64 rows of what they meet, kStages deep
//
// A step's scores are multiplied while the gradients of the step before are added up; groups take turns on the tensor
// cores, since each needs them for some of its time only.
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sm90.cuh"

#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention_sums.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {
namespace {

using Rounded = __nv_bfloat16;
using Operands = Bf16AttentionOperands;

constexpr int kHead = kSm90HeadWidth, kStep = 64, kStages = 4, kTileStages = 2;
constexpr int kBoxBytes = kStep * kHead * 2;  // of 64 rows of one head
constexpr int kBarrierBytes = 128;

// Of tiles of kGroups * 64 rows, of kTileBoxes matrices; a step brings rows of two matrices.
template <int kGroups, int kTileBoxes>
struct Plan {
  static constexpr int kRows = 64 * kGroups, kThreads = 128 * (kGroups + 1);
  static constexpr int kTileBytes = kTileBoxes * kGroups * kBoxBytes;
  static constexpr int kSharedBytes = 1024 + kTileStages * kTileBytes + kStages * 2 * kBoxBytes + kBarrierBytes;

  uint32_t tiles, steps, tile_full, tile_empty, full, empty;

  __device__ explicit Plan(uint32_t memory) {
    tiles = (memory + 1023) / 1024 * 1024;
    steps = tiles + kTileStages * kTileBytes;
    tile_full = steps + kStages * 2 * kBoxBytes;
    tile_empty = tile_full + 8 * kTileStages;
    full = tile_empty + 8 * kTileStages;
    empty = full + 8 * kStages;
    static_assert(8 * 2 * (kTileStages + kStages) <= kBarrierBytes);
  }
  // Rows of matrix `box` of a group's, and of a step.
  __device__ uint32_t tile_box(int stage, int box, int group) const {
    return tiles + static_cast<uint32_t>(stage * kTileBytes + (box * kGroups + group) * kBoxBytes);
  }
  __device__ uint32_t step_box(int stage, int box) const {
    return steps + static_cast<uint32_t>((2 * stage + box) * kBoxBytes);
  }
};

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

THIMBLE_HOST_DEVICE int count_tiles(const Operands& in, int sequences, int heads, int rows) {
  return divide_up(in.positions, rows) * heads * sequences;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace sm90;

// A CTA's tiles: to and fro over the grid, so that who begins with a longer one ends with a shorter one.
struct TileTurns {
  int count, turn = 0, index;

  __device__ explicit TileTurns(int tiles) : count(tiles), index(static_cast<int>(blockIdx.x)) {}
  __device__ bool has_tile() const { return index < count; }
  __device__ void advance() {
    ++turn;
    const auto grid = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    index = turn * grid + (turn % 2 == 0 ? block : grid - 1 - block);
  }
};

// `loaders`: threads that arrive where a step is full.
template <typename Plan, int kGroups>
__device__ void initialise(const Plan& plan, int loaders) {
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kTileStages; ++stage) {
      initialise_barrier(plan.tile_full + 8 * stage, 1);
      initialise_barrier(plan.tile_empty + 8 * stage, 4 * kGroups);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      initialise_barrier(plan.full + 8 * stage, loaders);
      initialise_barrier(plan.empty + 8 * stage, 4 * kGroups);
    }
    fence_stores();  // barriers are seen by the copies
  }
  __syncthreads();
  wait_for_previous();
}

// sums (64, 64) = left (64, head) right (64, head)^T, not waited for.
__device__ void start_scores(FragmentValues<kStep>& sums, uint32_t left, uint32_t right) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k)
    multiply_async<Rounded>(sums, operand(left) + 2 * k, operand(right) + 2 * k, k > 0);
  commit_products();
}

// sums (64, head) += weights (64, 64) right (64, head), likewise.
__device__ void start_sums(FragmentValues<kHead>& sums, const uint32_t (&weights)[kStep / 16][4], uint32_t right) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k)
    multiply_async<Rounded, /*kTransposedB=*/true>(sums, weights[k], operand(right + k * 16 * kHead * 2), 1);
  commit_products();
}

__device__ void pack_fragment(const FragmentValues<kStep>& values, uint32_t (&to)[kStep / 16][4]) {
#pragma unroll
  for (int k = 0; k < kStep / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      to[k][i] = packed<Rounded>(values[2 * k + i / 2][i % 2 * 2], values[2 * k + i / 2][i % 2 * 2 + 1]);
}

// What a warp knows of the ring of steps.
template <typename Plan>
struct Steps {
  const Plan& plan;
  Ring<kStages> ring;
  int held = -1;  // the stage that products still read

  __device__ explicit Steps(const Plan& p) : plan(p) {}
  __device__ uint32_t box(int i) const { return plan.step_box(ring.index, i); }
  __device__ void wait_for_step() const { wait(plan.full + 8 * ring.index, ring.parity); }
  // The products that read the stage held are done: the loader may have it.
  __device__ void release() {
    if (held >= 0) arrive_as_warp(plan.empty + 8 * held);
    held = -1;
  }
  // To the next step, once products that read this one have been started.
  __device__ void hold_and_advance() {
    held = ring.index;
    ring.advance();
  }
  // Leaves out steps that only other groups use.
  __device__ void pass_on(int count) {
    for (int i = 0; i < count; ++i, ring.advance()) {
      wait_for_step();
      arrive_as_warp(plan.empty + 8 * ring.index);
    }
  }
};

// The boxes of a step's rows of two matrices.
template <typename Plan>
__device__ void load_step(const Plan& plan, const Ring<kStages>& ring, const CUtensorMap& first_map,
                          const CUtensorMap& second_map, int head, int row, int sequence) {
  const uint32_t full = plan.full + 8 * ring.index;
  expect_bytes(full, 2 * kBoxBytes);
  load_box(plan.step_box(ring.index, 0), first_map, head * kHead, row, sequence, full);
  load_box(plan.step_box(ring.index, 1), second_map, head * kHead, row, sequence, full);
}

// A tile's rows of kTileBoxes matrices, group by group.
template <typename Plan, int kGroups, int kTileBoxes>
__device__ void load_tile(const Plan& plan, int stage, const CUtensorMap* const (&maps)[kTileBoxes], int head, int row,
                          int sequence) {
  const uint32_t full = plan.tile_full + 8 * stage;
  expect_bytes(full, Plan::kTileBytes);
#pragma unroll
  for (int box = 0; box < kTileBoxes; ++box)
#pragma unroll
    for (int group = 0; group < kGroups; ++group)
      load_box(plan.tile_box(stage, box, group), *maps[box], head * kHead, row + 64 * group, sequence, full);
}

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

// Registers per thread of the groups that multiply and of the one that loads: they fill the multiprocessor's 65,536.
template <int kGroups>
constexpr int kOwnRegisters = kGroups == 3 ? 160 : 224;
template <int kGroups>
constexpr int kLoaderRegisters = kGroups == 3 ? 32 : 56;

constexpr int kQueryGroups = 3, kKeyGroups = 2;
using ForwardPlan = Plan<kQueryGroups, 1>;
using QueryPlan = Plan<kQueryGroups, 2>;
using KeyPlan = Plan<kKeyGroups, 2>;

__global__ void __launch_bounds__(ForwardPlan::kThreads, 1)
    attention_forward_sm90_kernel(const __grid_constant__ Operands in, int sequences, bool exclusive,
                                  const __grid_constant__ Bf16View y, const __grid_constant__ CUtensorMap q,
                                  const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  const ForwardPlan plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
  initialise<ForwardPlan, kQueryGroups>(plan, /*loaders=*/1);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group < kQueryGroups) {
    take_registers<kOwnRegisters<kQueryGroups>>();
    add_outputs(plan, in, sequences, exclusive, y, group);
  } else {
    give_registers<kLoaderRegisters<kQueryGroups>>();
    const CUtensorMap* maps[] = {&q};
    if (threadIdx.x % 128 == 0) load_queries_and_keys<ForwardPlan, kQueryGroups>(plan, in, sequences, maps, k, v);
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
  initialise<QueryPlan, kQueryGroups>(plan, /*loaders=*/1);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group < kQueryGroups) {
    take_registers<kOwnRegisters<kQueryGroups>>();
    add_query_gradients(plan, in, sequences, dq, scale, group);
  } else {
    give_registers<kLoaderRegisters<kQueryGroups>>();
    const CUtensorMap* maps[] = {&q, &dy};
    if (threadIdx.x % 128 == 0) load_queries_and_keys<QueryPlan, kQueryGroups>(plan, in, sequences, maps, k, v);
  }
#endif
}

__global__ void __launch_bounds__(KeyPlan::kThreads, 1)
    key_gradients_sm90_kernel(const __grid_constant__ Operands in, int sequences, const __grid_constant__ Bf16View dk,
                              const __grid_constant__ Bf16View dv, bool adds_dv, float scale,
                              const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
                              const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap dy) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  __shared__ RowValues rows;
  const KeyPlan plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
  initialise<KeyPlan, kKeyGroups>(plan, /*loaders=*/32);
  const int group = static_cast<int>(threadIdx.x) / 128;
  if (group < kKeyGroups) {
    take_registers<kOwnRegisters<kKeyGroups>>();
    add_key_gradients(plan, rows, in, sequences, dk, dv, adds_dv, scale, group);
  } else {
    give_registers<kLoaderRegisters<kKeyGroups>>();
    if (threadIdx.x % 128 < 32) load_keys_and_queries<KeyPlan, kKeyGroups>(plan, rows, in, sequences, q, k, v, dy);
  }
#endif
}

// Boxes of 64 rows of one head and window; what lies behind its last row arrives as zeros.
CUtensorMap map_of(const Bf16Heads& x, int heads, const Operands& in, int64_t sequences) {
  return make_tensor_map(x.data, in.positions, int64_t{heads} * kHead, x.stride, kStep, sequences,
                         in.positions * x.stride);
}

template <typename Plan>
LaunchShape persistent_launch(const Operands& in, int64_t sequences, int heads) {
  const int tiles = count_tiles(in, static_cast<int>(sequences), heads, Plan::kRows);
  return {dim3(static_cast<unsigned>(std::min(multiprocessors(), tiles))), Plan::kThreads, Plan::kSharedBytes, 1,
          /*overlaps=*/true};
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

void launch_key_gradients_sm90(const Bf16AttentionOperands& in, int64_t sequences, Bf16View dk, Bf16View dv,
                               bool adds_dv, float scale, cudaStream_t stream) {
  launch_kernel(key_gradients_sm90_kernel, persistent_launch<KeyPlan>(in, sequences, in.kv_heads), stream, in,
                static_cast<int>(sequences), dk, dv, adds_dv, scale, map_of(in.q, in.heads, in, sequences),
                map_of(in.k, in.kv_heads, in, sequences), map_of(in.v, in.kv_heads, in, sequences),
                map_of(in.dy, in.heads, in, sequences));
}

}  // namespace thimble
