// cuda_gemm_sm90.cuh: C = A B^T in bf16 or fp16 on Hopper's own units: bulk tensor copies, asynchronous tensor cores
// (wgmma), and an epilogue that runs while the next tile is multiplied. Same operands, epilogues and contract as
// cuda_gemm.cuh.
//
// A persistent grid of clusters of two CTAs. A cluster's two tiles (kRows x kColumns each) share their columns: each
// CTA loads half of B's tile and sends it to both. Sixteen warps per CTA:
//
//   1 loader          one thread: A and B tiles of 64 columns of K, kStages deep      -> full / empty barriers
//   8 multipliers     two warpgroups that take tiles in turn, so that one multiplies  <- turn
//                     while the other hands over; accumulators in registers that the  -> its finished tile, in T
//                     others gave up
//   3 + 4 finishers   the epilogue of three tiles of seven and of the others, row by  <- tile_full / tile_empty
//                     row
//
// Each set of finishers has about two tiles' time for one, by its size, and asks for rows' inputs ahead.
//
// Tiles are 128 x 128, or 64 x 256 where an epilogue needs so many columns together.
// In fp16, whose range a product may leave, a row of the finished tile is scaled by a power of two.
#pragma once

#include <type_traits>

#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {

namespace gemm_sm90 {

constexpr int kDepth = 64, kCluster = 2, kGroups = 2;                                      // of warps that multiply
constexpr int kThreads = 512, kGroupWarps = 4, kFirstFinishers = 3, kSecondFinishers = 4;  // warps
constexpr int kSets = 2;                                                                   // of finishers

// The set that finishes a CTA's k-th tile: of seven in a row the first takes three, the second four. Where beginning a
// tile takes long, for it reads much of its columns, sets take turns: the second would begin four times in the time of
// three and a half.
template <typename Epilogue>
__host__ __device__ constexpr int set_of(int k) {
  if (sizeof(typename Epilogue::Columns) > 64) return k % 2;
  return k % (kFirstFinishers + kSecondFinishers) % 2 == 0 ? 1 : 0;
}
constexpr int kMostSharedBytes = 227 * 1024, kBarrierBytes = 192;

// Of tiles of kColumns columns, products of T, and an epilogue that keeps kRowBytes for a row.
template <typename T, int kColumns, int kRowBytes>
struct Tiling {
  static constexpr int kRows = 128 * 128 / kColumns;
  static constexpr int kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2;
  static constexpr int kTileBytes = kRows * kColumns * 2;
  static constexpr int kScaleBytes = std::is_same_v<T, __half> ? kGroups * kRows * static_cast<int>(sizeof(float)) : 0;
  static constexpr int kOtherBytes =  // with alignment
      1024 + kGroups * kTileBytes + kBarrierBytes + kScaleBytes;
  static constexpr int kStages =
      std::min(5, (kMostSharedBytes - kOtherBytes - 2 * kSets * kRows * kRowBytes) / (kABytes + kBBytes));
  static constexpr int kSharedBytes = kOtherBytes + kStages * (kABytes + kBBytes);
  static_assert(kStages >= 3 && 8 * (2 * kStages + (2 + kSets) * kGroups) <= kBarrierBytes);
  // A warpgroup's accumulators are two of 64 x 128, one below or beside the other.
  static constexpr int kParts = kRows / 64, kPartFragments = kColumns / 8;

  // Fragment j of part `part`'s rows.
  template <typename Halves>
  __device__ static auto& fragment(Halves& acc, int part, int j) {
    return kParts == 2 ? acc[part][j] : acc[j / 16][j % 16];
  }
};

struct ProductShape {
  int64_t rows;
  int columns, depth;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace sm90;

// Where things lie in shared memory, and which tile comes when.
template <typename Tiles, int kColumns>
struct Plan {
  static constexpr int kRows = Tiles::kRows, kStages = Tiles::kStages;
  using FinishedTile = gemm_detail::SharedTile<kColumns * 2>;

  uint32_t a, b, tile, full, empty, tile_full, tile_empty, turn, row_scales;
  int steps, column_tiles, tiles, first_tile, tile_step;

  __device__ explicit Plan(uint32_t memory, const ProductShape& shape) {
    a = (memory + 1023) / 1024 * 1024;
    b = a + kStages * Tiles::kABytes;
    tile = b + kStages * Tiles::kBBytes;
    full = tile + kGroups * Tiles::kTileBytes;
    empty = full + 8 * kStages;
    tile_full = empty + 8 * kStages;
    tile_empty = tile_full + 8 * kGroups * kSets;
    turn = tile_empty + 8 * kGroups;
    row_scales = full + kBarrierBytes;
    steps = divide_up(shape.depth, kDepth);
    column_tiles = divide_up(shape.columns, kColumns);
    tiles = divide_up(shape.rows, kRows * kCluster) * column_tiles;
    first_tile = static_cast<int>(blockIdx.x) / kCluster;
    tile_step = static_cast<int>(gridDim.x) / kCluster;
  }
  __device__ int first_row(int t, uint32_t rank) const {
    return (t / column_tiles * kCluster + static_cast<int>(rank)) * kRows;
  }
  __device__ int column_tile(int t) const { return t % column_tiles; }
  // Of a group's tile for a set: each sees its own in turn, and never waits for a phase that is not the next.
  __device__ uint32_t full_for(int group, int set) const {
    return tile_full + 8 * static_cast<uint32_t>(group * kSets + set);
  }
  // Of a group's finished tile.
  __device__ uint32_t finished_at(int group, int row, int chunk) const {
    return tile + static_cast<uint32_t>(group * Tiles::kTileBytes) + FinishedTile::at(row, chunk);
  }
  __device__ uint32_t row_scale_at(int group, int row) const {
    return row_scales + static_cast<uint32_t>(group * kRows + row) * 4;
  }
};

template <typename Tiles, int kColumns>
__device__ void load_tiles(const Plan<Tiles, kColumns>& plan, const CUtensorMap& a, const CUtensorMap& b,
                           uint32_t rank) {
  Ring<Tiles::kStages> ring;
  for (int t = plan.first_tile; t < plan.tiles; t += plan.tile_step) {
    int row = plan.first_row(t, rank), column = plan.column_tile(t) * kColumns;
    for (int step = 0; step < plan.steps; ++step, ring.advance()) {
      uint32_t full = plan.full + 8 * ring.index;
      wait(plan.empty + 8 * ring.index, ring.parity ^ 1);
      expect_bytes(full, Tiles::kABytes + Tiles::kBBytes);
      load_box(plan.a + ring.index * Tiles::kABytes, a, step * kDepth, row, full);
      uint32_t half = rank * (Tiles::kBBytes / kCluster);
      load_box_for_all(plan.b + ring.index * Tiles::kBBytes + half, b, step * kDepth,
                       column + static_cast<int>(rank) * (kColumns / kCluster), full, (1 << kCluster) - 1);
    }
  }
}

// A row's scale before it is handed over in fp16, its largest product in [2^14, 2^15) then, and the inverse.
struct RowScale {
  float to, back;

  __device__ explicit RowScale(float largest) {
    const uint32_t exponent = min(max(__float_as_uint(largest) >> 23, 30u), 250u);
    to = __uint_as_float((268 - exponent) << 23);
    back = __uint_as_float((exponent - 14) << 23);
  }
};
// Scales the rows of a warpgroup's tile, and leaves the inverses.
template <typename Tiles, int kColumns>
__device__ void scale_rows(FragmentValues<128> (&acc)[2], const Plan<Tiles, kColumns>& plan, int group) {
  const int first = static_cast<int>(threadIdx.x) / 32 % kGroupWarps * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
#pragma unroll
  for (int part = 0; part < Tiles::kParts; ++part)
#pragma unroll
    for (int lower = 0; lower < 2; ++lower) {  // row `first` of the part, and the one eight rows below
      float largest = 0;
#pragma unroll
      for (int j = 0; j < Tiles::kPartFragments; ++j) {
        const auto& v = Tiles::fragment(acc, part, j);
        largest = fmaxf(largest, fmaxf(fabsf(v[2 * lower]), fabsf(v[2 * lower + 1])));
      }
      const RowScale scale(max_over_lanes<4>(largest));
#pragma unroll
      for (int j = 0; j < Tiles::kPartFragments; ++j) {
        auto& v = Tiles::fragment(acc, part, j);
        v[2 * lower] *= scale.to;
        v[2 * lower + 1] *= scale.to;
      }
      if (threadIdx.x % 4 == 0)
        asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(plan.row_scale_at(group, part * 64 + first + 8 * lower)),
                     "f"(scale.back)
                     : "memory");
    }
}

// Every other tile, from the group's first on.
template <typename T, typename Tiles, int kColumns, typename Epilogue>
__device__ void multiply_tiles(const Plan<Tiles, kColumns>& plan, const Epilogue& epilogue, int group) {
  constexpr int kHalfA = Tiles::kParts == 2 ? Tiles::kABytes / 2 : 0,
                kHalfB = Tiles::kParts == 2 ? 0 : Tiles::kBBytes / 2;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32 % kGroupWarps;
  Ring<Tiles::kStages> ring;
  ring.skip(group * plan.steps);
  Ring<1> finished;
  for (int k = group, t = plan.first_tile + group * plan.tile_step; t < plan.tiles;
       k += kGroups, t += kGroups * plan.tile_step) {
    FragmentValues<128> acc[2];
    int previous = -1;
    // The other group has seen all its stages full: each stage's last use but this one is past, as parities want it.
    wait(plan.turn + 8 * group, finished.parity ^ (group == 0 ? 1 : 0));
    for (int step = 0; step < plan.steps; ++step, ring.advance()) {
      wait(plan.full + 8 * ring.index, ring.parity);
      begin_products();
      uint64_t a = operand(plan.a + ring.index * Tiles::kABytes);
      uint64_t b = operand(plan.b + ring.index * Tiles::kBBytes);
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)  // 32 bytes further within the swizzled rows
#pragma unroll
        for (int half = 0; half < 2; ++half)
          multiply_async<T>(acc[half], a + half * (kHalfA >> 4) + 2 * k, b + half * (kHalfB >> 4) + 2 * k,
                            step > 0 || k > 0);
      commit_products();
      wait_for_products<1>();  // the step before this one is done with its stage
      if (previous >= 0 && threadIdx.x % 128 < kCluster) arrive_at(plan.empty + 8 * previous, threadIdx.x % 128);
      previous = ring.index;
    }
    arrive_as_warp(plan.turn + 8 * (1 - group));
    wait_for_products<0>();
    hold(acc[0]);
    hold(acc[1]);
    if (threadIdx.x % 128 < kCluster) arrive_at(plan.empty + 8 * previous, threadIdx.x % 128);
    ring.skip(plan.steps);  // the other group's

#pragma unroll
    for (int part = 0; part < Tiles::kParts; ++part)
#pragma unroll
      for (int j = 0; j < Tiles::kPartFragments; ++j) round_first(epilogue, Tiles::fragment(acc, part, j));
    wait(plan.tile_empty + 8 * group, finished.parity ^ 1);
    if constexpr (std::is_same_v<T, __half>) scale_rows(acc, plan, group);
#pragma unroll
    for (int part = 0; part < Tiles::kParts; ++part)
#pragma unroll
      for (int j = 0; j < Tiles::kPartFragments; j += 2)
        store_fragments<T>(plan.finished_at(group, part * 64 + warp * 16 + lane % 16, j + lane / 16),
                           Tiles::fragment(acc, part, j), Tiles::fragment(acc, part, j + 1));
    arrive_as_warp(plan.full_for(group, set_of<Epilogue>(k)));
    finished.advance();
  }
}

// Rows' inputs on their way. A block is one or two rows for each part of a warp that sees a row at a time; what is done
// with these overlaps. Its inputs are asked for once those of kBlocks before it are used, of a single one just before.
template <typename Epilogue>
struct Ahead {
  using Fetched = typename Epilogue::Fetched;
  static constexpr int kBytes = 176;  // of a lane's registers for inputs and for what an epilogue keeps of its columns
  static constexpr int kRows =
      (kBytes - static_cast<int>(sizeof(typename Epilogue::Columns))) / static_cast<int>(sizeof(Fetched));
  static constexpr int kTogether = kRows >= 4 ? 2 : 1;
  static constexpr int kBlocks = std::is_empty_v<Fetched> ? 1 : std::min(4, kRows / kTogether);
  static_assert(kBlocks >= 1);
};

// The tiles of set `set`, as multipliers leave them, by kWarps warps. `row_data`: (2, kRows), for this tile and the
// next one: a fast warp may begin the next while another still reads.
template <typename T, int kWarps, typename Tiles, int kColumns, typename Epilogue>
__device__ void finish_tiles(const Plan<Tiles, kColumns>& plan, const ProductShape& shape, const Epilogue& epilogue,
                             uint32_t rank, typename Epilogue::Row (*row_data)[Tiles::kRows], int set, int finisher) {
  constexpr int kRows = Tiles::kRows, kLanes = kColumns / 8, kAtOnce = 32 / kLanes;  // rows that a warp sees at once
  using Fetched = typename Epilogue::Fetched;
  constexpr int kTogether = Ahead<Epilogue>::kTogether, kAhead = Ahead<Epilogue>::kBlocks;
  constexpr int kBlocks = kRows / (kTogether * kAtOnce);
  static_assert(kBlocks >= kAhead * kWarps);
  const int lane = static_cast<int>(threadIdx.x) % 32, own = lane / kLanes, chunk = lane % kLanes;
  uint32_t parities = 0;  // bit `group`: of the set's next tile from there
  Ring<2> ring;           // of row_data
  for (int k = 0, t = plan.first_tile; t < plan.tiles; ++k, t += plan.tile_step) {
    if (set_of<Epilogue>(k) != set) continue;
    const int group = k % kGroups;
    const int64_t first_row = plan.first_row(t, rank);
    const int tile = plan.column_tile(t), column = tile * kColumns + chunk * 8;
    const auto columns = epilogue.columns(column, column < shape.columns);
    auto* rows = row_data[ring.index];
    for (int r = finisher * 32 + lane; r < kRows; r += 32 * kWarps)
      rows[r] = epilogue.row(min(first_row + r, shape.rows - 1));
    asm volatile("bar.sync %0, %1;\n" ::"r"(1 + set), "n"(32 * kWarps) : "memory");
    auto place_of = [&](int r) -> RowPlace {
      return {first_row + r, column, tile, first_row + r < shape.rows && column < shape.columns};
    };
    auto row_of = [&](int block, int i) { return (block * kTogether + i) * kAtOnce + own; };
    Fetched ahead[kAhead][kTogether];
    auto fetch = [&](int block, Fetched(&to)[kTogether]) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const int r = row_of(block, i);
        to[i] = epilogue.fetch(within_rows(place_of(r), shape.rows), columns, rows[r]);
      }
    };
#pragma unroll
    for (int d = 0; d < kAhead; ++d) fetch(finisher + d * kWarps, ahead[d]);
    wait(plan.full_for(group, set), parities >> group & 1);
    parities ^= 1u << group;
#pragma unroll 1
    for (int first = finisher; first < kBlocks; first += kAhead * kWarps) {
#pragma unroll
      for (int d = 0; d < kAhead; ++d) {
        const int block = first + d * kWarps, next = block + kAhead * kWarps;
        if (block >= kBlocks) break;
        Fetched fetched[kTogether];
#pragma unroll
        for (int i = 0; i < kTogether; ++i) fetched[i] = ahead[d][i];
        if (kAhead == 1 && next < kBlocks) fetch(next, ahead[d]);
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int r = row_of(block, i);
          Stored8<T> product;
          asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                       : "=r"(product.raw.x), "=r"(product.raw.y), "=r"(product.raw.z), "=r"(product.raw.w)
                       : "r"(plan.finished_at(group, r, chunk)));
          float v[8];
          product.unpack(v);
          if constexpr (std::is_same_v<T, __half>) {
            float back;
            asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(back) : "r"(plan.row_scale_at(group, r)));
#pragma unroll
            for (float& value : v) value *= back;
          }
          epilogue.template apply<kLanes>(v, place_of(r), columns, rows[r], fetched[i]);
        }
        if (kAhead > 1 && next < kBlocks) fetch(next, ahead[d]);
      }
    }
    arrive_as_warps(plan.tile_empty + 8 * group, kFirstFinishers * kSecondFinishers / kWarps);
    ring.advance();
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Launched in clusters of kCluster.
template <typename T, int kColumns, typename Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                     const ProductShape shape, const __grid_constant__ Epilogue epilogue) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  using Tiles = Tiling<T, kColumns, sizeof(typename Epilogue::Row)>;
  extern __shared__ char shared_memory[];
  __shared__ typename Epilogue::Row row_data[kSets][2][Tiles::kRows];
  Plan<Tiles, kColumns> plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), shape);
  uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Tiles::kStages; ++stage) {
      initialise_barrier(plan.full + 8 * stage, 1);
      initialise_barrier(plan.empty + 8 * stage, kCluster);
    }
    for (int tile = 0; tile < kGroups; ++tile) {
      for (int set = 0; set < kSets; ++set) initialise_barrier(plan.full_for(tile, set), kGroupWarps);
      initialise_barrier(plan.tile_empty + 8 * tile, kFirstFinishers * kSecondFinishers);  // a multiple of any set's
      initialise_barrier(plan.turn + 8 * tile, kGroupWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  cluster_barrier();
  // Warpgroups 1 and 2 multiply; warp 0 loads; warps 1-3 and 12-15 finish. 160 and 96 registers fill the 65,536.
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0), group = warp / 4;
  if (group == 1 || group == 2) {
    take_registers<160>();
    multiply_tiles<T>(plan, epilogue, group - 1);
  } else {
    give_registers<96>();
    if (group > 0)
      finish_tiles<T, kSecondFinishers>(plan, shape, epilogue, rank, row_data[1], 1, warp - 12);
    else if (warp > 0)
      finish_tiles<T, kFirstFinishers>(plan, shape, epilogue, rank, row_data[0], 0, warp - 1);
    else if (threadIdx.x == 0)
      load_tiles(plan, a, b, rank);
  }
  cluster_barrier();  // nobody leaves while the other may still write to it
#endif
}

}  // namespace gemm_sm90

// Tiles of kColumns columns, 128 or 256: epilogues leave row sums of squares in parts of as many.
template <typename T, int kColumns, typename Epilogue>
void launch_gemm_sm90(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) {
  using namespace gemm_sm90;
  using Tiles = Tiling<T, kColumns, static_cast<int>(sizeof(typename Epilogue::Row))>;
  LaunchShape shape{dim3(kCluster), kThreads, Tiles::kSharedBytes, kCluster};
  int tiles = divide_up(operands.rows, Tiles::kRows * kCluster) * divide_up(operands.columns, kColumns);
  shape.grid.x = static_cast<unsigned>(
      kCluster * std::min(active_clusters(gemm_sm90_kernel<T, kColumns, Epilogue>, shape), tiles));
  CUtensorMap a = make_tensor_map(operands.a, operands.rows, operands.depth, operands.a_stride, Tiles::kRows);
  CUtensorMap b = make_tensor_map(operands.b, operands.columns, operands.depth, operands.depth, kColumns / kCluster);
  launch_kernel(gemm_sm90_kernel<T, kColumns, Epilogue>, shape, stream, a, b,
                ProductShape{operands.rows, operands.columns, operands.depth}, epilogue);
}

}  // namespace thimble
