// cuda_window_attention_sm90.cu: flash attention on Hopper's tensor cores for heads of 64 columns in bf16 and fp16, as
// FlashAttention-3 (Shah et al., arXiv 2407.08608) orders it: the scores of the next keys are multiplied while the
// exponentials of these run. Same operands and contract as cuda_window_attention.cu.
//
// What is subtracted from scores need not be the largest: float32 and bf16 hold weights of 2^60 as well as of 1. So in
// bf16 it is the largest of the first keys' scores, and partial sums need no rescaling. A row whose later scores are so
// much larger that this does not do keeps its query, and is done again at the end as all are in fp16, whose weights end
// at 2^16: with the largest score so far.
//
// A persistent grid, one CTA per multiprocessor. A tile is kGroups * 64 queries of one head. A loader thread brings
// queries, and keys and values by 128, into rings; each of kGroups warpgroups walks over them with its own 64 queries.
// The rings run on from tile to tile: while one group ends its rows, others multiply, and the next tile's keys arrive.
#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/attention/cuda_attention_rows.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {
namespace {

// 160 and 32 registers per thread of the warpgroups fill the multiprocessor's 65,536.
constexpr int kHead = kSm90HeadWidth, kGroups = 3, kQueries = 64 * kGroups, kKeys = 128;
constexpr int kQueryStages = 2, kStages = 4;
constexpr int kQueryBytes = kQueries * kHead * 2, kTileBytes = kKeys * kHead * 2;
constexpr int kThreads = 128 * (kGroups + 1);
// Scores up to here leave 2^(q.k), and its sums over a context, within float32 and bf16.
constexpr float kLargestScore = 100;

// What is subtracted from scores.
enum class Peaks {
  kNone,     // nothing, where no score exceeds kLargestScore
  kFirst,    // the largest of the first keys' scores
  kRunning,  // the largest so far
};
constexpr int kAgainWords = kQueries / 32;
constexpr int kSharedBytes =  // with alignment and barriers; behind that lies what is to be done again
    1024 + kQueryStages * kQueryBytes + 2 * kStages * kTileBytes + 8 * (2 * kQueryStages + 4 * kStages + 2);

template <typename T>
__host__ __device__ int tile_count(const AttentionOperands<T>& operands) {
  return operands.heads * operands.sequences * divide_up(operands.positions, kQueries);
}
template <typename T>
__host__ __device__ int most_own_tiles(const AttentionOperands<T>& operands, int ctas) {
  return divide_up(tile_count(operands), ctas);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace sm90;

// Rows whose weights' sum exceeds this, or is not finite, are done again.
constexpr float kLargestSum = 0x1p64f;

// Where things lie in shared memory.
struct Shared {
  uint32_t queries, keys, values, queries_full, queries_empty, keys_full, values_full, keys_empty, values_empty;
  uint32_t done;   // barrier: all groups have seen all tiles
  uint32_t more;   // a word: is anything to be done again?
  uint32_t again;  // for each of the CTA's tiles kAgainWords words of a bit for each query that is to be done again

  __device__ explicit Shared(uint32_t memory) {
    queries = (memory + 1023) / 1024 * 1024;
    keys = queries + kQueryStages * kQueryBytes;
    values = keys + kStages * kTileBytes;
    queries_full = values + kStages * kTileBytes;
    queries_empty = queries_full + 8 * kQueryStages;
    keys_full = queries_empty + 8 * kQueryStages;
    values_full = keys_full + 8 * kStages;
    keys_empty = values_full + 8 * kStages;
    values_empty = keys_empty + 8 * kStages;
    done = values_empty + 8 * kStages;
    more = done + 8;
    again = more + 8;
  }
  // Of a tile and group: two words.
  __device__ uint32_t again_at(int tile, int group) const {
    return again + 4 * (tile / static_cast<int>(gridDim.x) * kAgainWords + 2 * group);
  }
  __device__ bool is_again(int tile, int group) const {
    return (load_word(again_at(tile, group)) | load_word(again_at(tile, group) + 4)) != 0;
  }
  __device__ bool is_again(int tile) const {
    for (int group = 0; group < kGroups; ++group)
      if (is_again(tile, group)) return true;
    return false;
  }
};

// One head's queries first_query .. first_query + queries of a sequence.
struct Tile {
  int head, kv_head, sequence, first_query, queries, first_position, steps;

  // Late tiles see the most keys; the grid starts with them, so that its multiprocessors end together.
  template <typename T>
  __device__ Tile(int index, const AttentionOperands<T>& operands, int window_start) {
    int heads = operands.heads, columns = heads * operands.sequences, rows = divide_up(operands.positions, kQueries);
    head = index % heads;
    kv_head = head / (heads / operands.kv_heads);
    sequence = index % columns / heads;
    first_query = (rows - 1 - index / columns) * kQueries;
    queries = min(kQueries, operands.positions - first_query);
    first_position = window_start + first_query;
    steps = divide_up(first_position + queries, kKeys);
  }
  // Steps up to the diagonal of one group's rows; none if it has no rows.
  __device__ int group_steps(int group) const {
    int rows = min(64, queries - 64 * group);
    return rows > 0 ? divide_up(first_position + 64 * group + rows, kKeys) : 0;
  }
};

// Where the rings stand, which run on from one walk over tiles to the next.
struct Rings {
  Ring<kQueryStages> queries;
  Ring<kStages> keys, values;
};

// kAgain: of the tiles of which a group has queries to be done again.
template <bool kAgain, typename T>
__device__ void load_tiles(const Shared& shared, const AttentionOperands<T>& operands, const CUtensorMap& queries,
                           const CUtensorMap& keys, Rings& rings) {
  const int window_start = *operands.first + operands.offset;
  for (int index = blockIdx.x; index < tile_count(operands); index += gridDim.x) {
    if (kAgain && !shared.is_again(index)) continue;
    Tile tile(index, operands, window_start);
    uint32_t full = shared.queries_full + 8 * rings.queries.index;
    wait(shared.queries_empty + 8 * rings.queries.index, rings.queries.parity ^ 1);
    expect_bytes(full, kQueryBytes);
    load_box(shared.queries + rings.queries.index * kQueryBytes, queries, tile.head * kHead,
             tile.sequence * operands.positions + tile.first_query, full);
    rings.queries.advance();
    int row = tile.sequence * static_cast<int>(operands.capacity);
    Ring<kStages>& ring = rings.keys;
    for (int step = 0; step < tile.steps; ++step, ring.advance()) {
      full = shared.keys_full + 8 * ring.index;
      wait(shared.keys_empty + 8 * ring.index, ring.parity ^ 1);
      expect_bytes(full, kTileBytes);
      load_box(shared.keys + ring.index * kTileBytes, keys, tile.kv_head * kHead, row + step * kKeys, full);
      full = shared.values_full + 8 * ring.index;
      wait(shared.values_empty + 8 * ring.index, ring.parity ^ 1);
      expect_bytes(full, kTileBytes);
      load_box(shared.values + ring.index * kTileBytes, keys, (operands.kv_heads + tile.kv_head) * kHead,
               row + step * kKeys, full);
    }
  }
}

// scores (64, 128) = Q K^T, not waited for.
template <typename T>
__device__ void start_scores(FragmentValues<kKeys>& scores, uint32_t queries, uint32_t keys) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kHead / 16; ++k)
    multiply_async<T>(scores, operand(queries) + 2 * k, operand(keys) + 2 * k, k > 0);
  commit_products();
}

// out (64, 64) += P V, not waited for.
template <typename T>
__device__ void start_values(FragmentValues<kHead>& out, const uint32_t (&p)[kKeys / 16][4], uint32_t values) {
  begin_products();
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k)
    multiply_async<T, /*kTransposedB=*/true>(out, p[k], operand(values + k * 16 * kHead * 2), 1);
  commit_products();
}

// A lane's share of its two rows' softmax.
template <Peaks kPeaks>
struct Softmax {
  float sums[4] = {};                       // of columns i % 2, rows i / 2
  float peaks[2] = {-INFINITY, -INFINITY};  // what is subtracted
  float factors[2];                         // what the last ones' growth leaves of earlier weights

  __device__ void raise_peaks(const FragmentValues<kKeys>& scores) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float largest = peaks[half];
#pragma unroll
      for (int j = 0; j < kKeys / 8; ++j) largest = fmaxf(largest, fmaxf(scores[j][2 * half], scores[j][2 * half + 1]));
      largest = max_over_lanes<4>(largest);
      factors[half] = exp2_fast(peaks[half] - largest);  // 0 at the first step
      peaks[half] = largest;
      sums[2 * half] *= factors[half];
      sums[2 * half + 1] *= factors[half];
    }
  }
  // What was added up with earlier weights, once their products are there.
  __device__ void rescale(FragmentValues<kHead>& out) const {
    hold(out);
    if (!__any_sync(~0u, factors[0] != 1 || factors[1] != 1)) return;
#pragma unroll
    for (auto& values : out)
#pragma unroll
      for (int i = 0; i < 4; ++i) values[i] *= factors[i / 2];
  }
};

// Turns scores into weights, 0 beyond the diagonal, and adds them up. Rows of this lane: the first is at `position`,
// the group's first at `first_position`.
template <bool kFirstKeys, Peaks kPeaks>
__device__ void weigh(FragmentValues<kKeys>& scores, Softmax<kPeaks>& softmax, int first_key, int position,
                      int first_position) {
  if (first_key + kKeys - 1 > first_position) {  // the diagonal passes here
    int first_column = first_key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (first_column + 8 * j + i % 2 > position + i / 2 * 8) scores[j][i] = -INFINITY;
  }
  if constexpr (kPeaks == Peaks::kRunning || (kPeaks == Peaks::kFirst && kFirstKeys)) softmax.raise_peaks(scores);
#pragma unroll
  for (int j = 0; j < kKeys / 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      scores[j][i] = exp2_fast(kPeaks == Peaks::kNone ? scores[j][i] : scores[j][i] - softmax.peaks[i / 2]);
      softmax.sums[i] += scores[j][i];
    }
}

template <typename T>
__device__ void pack(const FragmentValues<kKeys>& scores, uint32_t (&p)[kKeys / 16][4]) {
#pragma unroll
  for (int k = 0; k < kKeys / 16; ++k)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      p[k][i] = packed<T>(scores[2 * k + i / 2][i % 2 * 2], scores[2 * k + i / 2][i % 2 * 2 + 1]);
}

__device__ void synchronise(int group) { asm volatile("bar.sync %0, 128;\n" ::"r"(1 + group) : "memory"); }
// Does it hold for any thread of the group? All of its threads ask.
__device__ bool any_of_group(int group, bool holds) {
  uint32_t any;
  asm volatile(
      "{\n.reg .pred holds, any;\nsetp.ne.u32 holds, %1, 0;\nbar.red.or.pred any, %2, 128, holds;\n"
      "selp.u32 %0, 1, 0, any;\n}\n"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(holds)), "r"(1 + group)
      : "memory");
  return any != 0;
}

// Releases tiles of keys and values that only other groups use. Without products, nothing else holds a group's warps
// together, and one that falls behind by a whole turn of the ring would wait for the wrong phase.
__device__ void pass_on(const Shared& shared, Ring<kStages>& keys, Ring<kStages>& values, int steps, int group) {
  for (int step = 0; step < steps; ++step, keys.advance(), values.advance()) {
    if (threadIdx.x % 128 > 0) continue;
    wait(shared.keys_full + 8 * keys.index, keys.parity);
    arrive(shared.keys_empty + 8 * keys.index);
    wait(shared.values_full + 8 * values.index, values.parity);
    arrive(shared.values_empty + 8 * values.index);
  }
  synchronise(group);
}

// kAgain: of queries to be done again. Returns where the rings stand then.
template <Peaks kPeaks, bool kAgain, typename T>
__device__ Rings attend(const Shared& shared, const AttentionOperands<T>& operands, const CUtensorMap& outputs,
                        int group, Rings rings) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  int row = group * 64 + warp * 16 + lane / 4;  // of the tile's queries
  bool releases = threadIdx.x % 128 == 0;
  const int window_start = *operands.first + operands.offset;
  Ring<kQueryStages>& query_ring = rings.queries;
  Ring<kStages>&keys = rings.keys, &values = rings.values;
  for (int index = blockIdx.x; index < tile_count(operands); index += gridDim.x) {
    if (kAgain && !shared.is_again(index)) continue;
    Tile tile(index, operands, window_start);
    int position = tile.first_position + row, group_position = tile.first_position + group * 64;
    int steps = kAgain && !shared.is_again(index, group) ? 0 : tile.group_steps(group);
    wait(shared.queries_full + 8 * query_ring.index, query_ring.parity);
    if (steps == 0) {
      pass_on(shared, keys, values, tile.steps, group);
      if (releases) arrive(shared.queries_empty + 8 * query_ring.index);
      query_ring.advance();
      continue;
    }
    uint32_t queries = shared.queries + query_ring.index * kQueryBytes + group * 64 * kHead * 2;
    FragmentValues<kHead> out = {};
    FragmentValues<kKeys> scores;
    uint32_t p[kKeys / 16][4];
    Softmax<kPeaks> softmax;
    wait(shared.keys_full + 8 * keys.index, keys.parity);
    start_scores<T>(scores, queries, shared.keys + keys.index * kTileBytes);
    wait_for_products<0>();
    if (releases) arrive(shared.keys_empty + 8 * keys.index);
    keys.advance();
    weigh</*kFirstKeys=*/true>(scores, softmax, 0, position, group_position);
    pack<T>(scores, p);
    wait(shared.values_full + 8 * values.index, values.parity);
    for (int step = 1; step < steps; ++step) {
      wait(shared.keys_full + 8 * keys.index, keys.parity);
      start_scores<T>(scores, queries, shared.keys + keys.index * kTileBytes);
      start_values<T>(out, p, shared.values + values.index * kTileBytes);
      wait_for_products<1>();  // the scores
      if (releases) arrive(shared.keys_empty + 8 * keys.index);
      keys.advance();
      weigh</*kFirstKeys=*/false>(scores, softmax, step * kKeys, position, group_position);
      // The compiler must not move the second wait before the exponentials, which hide the products' time: the loop of
      // this barrier's wait keeps it in place.
      hold(scores);
      uint32_t done = shared.values_empty + 8 * values.index;
      values.advance();
      wait(shared.values_full + 8 * values.index, values.parity);
      wait_for_products<0>();
      if (releases) arrive(done);
      if constexpr (kPeaks == Peaks::kRunning) softmax.rescale(out);
      pack<T>(scores, p);
    }
    start_values<T>(out, p, shared.values + values.index * kTileBytes);
    int64_t kv_stride = 2 * operands.kv_heads * kHead, stride = operands.heads * kHead;
    AttentionRows<T> rows{operands.keys + (tile.sequence * operands.capacity + tile.first_position) * kv_stride +
                              (operands.kv_heads + tile.kv_head) * kHead,
                          kv_stride,
                          operands.query +
                              (static_cast<int64_t>(tile.sequence) * operands.positions + tile.first_query) * stride +
                              tile.head * kHead,
                          stride,
                          tile.queries,
                          operands.exclusive};
    OwnValues<T, kHead / 8> own_values(rows, row);
    wait_for_products<0>();
    if (releases) arrive(shared.values_empty + 8 * values.index);
    values.advance();
    if (steps < tile.steps) pass_on(shared, keys, values, tile.steps - steps, group);
    const float sums[2] = {sum_over_lanes<4>(softmax.sums[0] + softmax.sums[1]),
                           sum_over_lanes<4>(softmax.sums[2] + softmax.sums[3])};
    bool is_stored[2] = {true, true}, all_are_stored = !kAgain;
    if constexpr (kPeaks == Peaks::kFirst) {
#pragma unroll
      for (int half = 0; half < 2; ++half) is_stored[half] = sums[half] <= kLargestSum;
      all_are_stored = !any_of_group(group, !is_stored[0] || !is_stored[1]);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t again = shared.again_at(index, group);
      const int bit = row - group * 64 + 8 * half;
      if (kAgain) is_stored[half] = has_bit(again, bit);
      if (kAgain || is_stored[half] || lane % 4 > 0) continue;
      set_bit(again, bit);
      set_bit(shared.more, 0);
    }
    const float inverse_sums[2] = {1 / sums[0], 1 / sums[1]};
    finish_attention(out, inverse_sums, own_values);
    if (!all_are_stored || tile.queries < 64 * (group + 1)) {
      store_rows(out, row, rows, is_stored);
    } else {  // over the queries in shared memory, laid out as by tensor copies, and from there in one copy
#pragma unroll
      for (int j = 0; j < kHead / 8; j += 2)
        store_fragments<T>(queries + gemm_detail::SharedTile<kHead * 2>::at(warp * 16 + lane % 16, j + lane / 16),
                           out[j], out[j + 1]);
      fence_stores();
      synchronise(group);
      if (releases) {
        store_box(outputs, tile.head * kHead, tile.sequence * operands.positions + tile.first_query + group * 64,
                  queries);
        wait_for_stores();
      }
    }
    if (releases) arrive(shared.queries_empty + 8 * query_ring.index);
    query_ring.advance();
  }
  return rings;
}

// Once all groups have seen all tiles: is anything to be done again? Asked by the groups and the loader.
__device__ bool has_more(const Shared& shared) {
  wait(shared.done, 0);
  return load_word(shared.more) != 0;
}
__device__ bool has_more(const Shared& shared, int group) {
  synchronise(group);
  if (threadIdx.x % 128 == 0) arrive(shared.done);
  return has_more(shared);
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

template <typename T, Peaks kPeaks>
__global__ void __launch_bounds__(kThreads, 1)
    window_attention_sm90_kernel(const AttentionOperands<T> operands, const __grid_constant__ CUtensorMap queries,
                                 const __grid_constant__ CUtensorMap keys,
                                 const __grid_constant__ CUtensorMap outputs) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  Shared shared(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)));
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kQueryStages; ++stage) {
      initialise_barrier(shared.queries_full + 8 * stage, 1);
      initialise_barrier(shared.queries_empty + 8 * stage, kGroups);
    }
    for (int stage = 0; stage < kStages; ++stage) {
      initialise_barrier(shared.keys_full + 8 * stage, 1);
      initialise_barrier(shared.values_full + 8 * stage, 1);
      initialise_barrier(shared.keys_empty + 8 * stage, kGroups);
      initialise_barrier(shared.values_empty + 8 * stage, kGroups);
    }
    initialise_barrier(shared.done, kGroups);
    store_word(shared.more, 0);
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  const int words = kPeaks == Peaks::kFirst ? kAgainWords * most_own_tiles(operands, static_cast<int>(gridDim.x)) : 0;
  for (int i = static_cast<int>(threadIdx.x); i < words; i += kThreads) store_word(shared.again + 4 * i, 0);
  __syncthreads();
  const int group = static_cast<int>(threadIdx.x) / 128;
  Rings rings;
  if (group < kGroups) {
    take_registers<160>();
    rings = attend<kPeaks, /*kAgain=*/false>(shared, operands, outputs, group, rings);
    if constexpr (kPeaks == Peaks::kFirst)
      if (has_more(shared, group)) attend<Peaks::kRunning, /*kAgain=*/true>(shared, operands, outputs, group, rings);
  } else {
    give_registers<32>();
    if (threadIdx.x % 128 > 0) return;
    load_tiles</*kAgain=*/false>(shared, operands, queries, keys, rings);
    if constexpr (kPeaks == Peaks::kFirst)
      if (has_more(shared)) load_tiles</*kAgain=*/true>(shared, operands, queries, keys, rings);
  }
#endif
}

}  // namespace

template <typename T>
void launch_window_attention_sm90(const AttentionOperands<T>& operands, cudaStream_t stream) {
  assert(!operands.rounding.exists() && operands.window == 0);
  int64_t query_columns = operands.heads * kHead, kv_columns = 2 * operands.kv_heads * kHead;
  int64_t query_rows = static_cast<int64_t>(operands.sequences) * operands.positions;
  CUtensorMap queries = make_tensor_map(operands.query, query_rows, query_columns, query_columns, kQueries);
  CUtensorMap outputs = make_tensor_map(operands.query, query_rows, query_columns, query_columns, 64);
  CUtensorMap keys =
      make_tensor_map(operands.keys, operands.sequences * operands.capacity, kv_columns, kv_columns, kKeys);
  const int ctas = std::min(multiprocessors(), tile_count(operands));
  const LaunchShape shape{dim3(static_cast<unsigned>(ctas)), kThreads,
                          kSharedBytes + 4 * kAgainWords * most_own_tiles(operands, ctas)};
  auto launch = [&](auto kernel) { launch_kernel(kernel, shape, stream, operands, queries, keys, outputs); };
  if constexpr (std::is_same_v<T, __half>)
    launch(window_attention_sm90_kernel<T, Peaks::kRunning>);
  else if (operands.largest_score <= kLargestScore)
    launch(window_attention_sm90_kernel<T, Peaks::kNone>);
  else
    launch(window_attention_sm90_kernel<T, Peaks::kFirst>);
}

template void launch_window_attention_sm90(const AttentionOperands<__nv_bfloat16>&, cudaStream_t);
template void launch_window_attention_sm90(const AttentionOperands<__half>&, cudaStream_t);

}  // namespace thimble
