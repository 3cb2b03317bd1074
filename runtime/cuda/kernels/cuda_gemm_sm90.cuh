// cuda_gemm_sm90.cuh: C = A B^T in bf16 or fp16 on Hopper's own units: bulk tensor copies, asynchronous tensor cores
// (wgmma), and an epilogue that runs while the next tile is multiplied. Same operands, epilogues and contract as
// cuda_gemm.cuh.
//
// A persistent grid of clusters of two CTAs. A cluster's two tiles (128 rows x 256 columns each) share their columns:
// each CTA loads half of B's tile and sends it to both. Sixteen warps per CTA:
//
//   1 loader          one thread: A and B tiles of 64 columns of K, kStages deep      -> full / empty barriers
//   8 multipliers     two warpgroups of 64 rows x 256 columns, accumulators in        -> the finished tile, in T
//                     registers that the others gave up
//   7 finishers       the epilogue, row by row, one warp per row of 256 columns       <- tile_full / tile_empty
//   barriers
//
// In fp16, whose range a product may leave, a row of the finished tile is scaled by a power of two.
#pragma once

#include "runtime/cuda/kernels/cuda_sm90.cuh"

namespace thimble {

namespace gemm_sm90 {

constexpr int kRows = 128, kColumns = 256, kDepth = 64, kStages = 3, kCluster = 2;
constexpr int kABytes = kRows * kDepth * 2, kBBytes = kColumns * kDepth * 2, kTileBytes = kRows * kColumns * 2;
constexpr int kThreads = 512, kMultipliers = 8, kFinishers = 7;  // warps of either kind
constexpr int kSharedBytes =                                     // with alignment, barriers and scales of rows
    1024 + kStages * (kABytes + kBBytes) + kTileBytes + 128 + kRows * static_cast<int>(sizeof(float));

struct ProductShape {
  int64_t rows;
  int columns, depth;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

using namespace sm90;

using FinishedTile = gemm_detail::SharedTile<kColumns * 2>;

// Where things lie in shared memory, and which tile comes when.
struct Plan {
  uint32_t a, b, tile, full, empty, tile_full, tile_empty, row_scales;
  int steps, column_tiles, tiles, first_tile, tile_step;

  __device__ explicit Plan(uint32_t memory, const ProductShape& shape) {
    a = (memory + 1023) / 1024 * 1024;
    b = a + kStages * kABytes;
    tile = b + kStages * kBBytes;
    full = tile + kTileBytes;
    empty = full + 8 * kStages;
    tile_full = empty + 8 * kStages;
    tile_empty = tile_full + 8;
    row_scales = full + 128;
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
};

__device__ inline void load_tiles(const Plan& plan, const CUtensorMap& a, const CUtensorMap& b, uint32_t rank) {
  Ring<kStages> ring;
  for (int t = plan.first_tile; t < plan.tiles; t += plan.tile_step) {
    int row = plan.first_row(t, rank), column = plan.column_tile(t) * kColumns;
    for (int step = 0; step < plan.steps; ++step, ring.advance()) {
      uint32_t full = plan.full + 8 * ring.index;
      wait(plan.empty + 8 * ring.index, ring.parity ^ 1);
      expect_bytes(full, kABytes + kBBytes);
      load_box(plan.a + ring.index * kABytes, a, step * kDepth, row, full);
      uint32_t half = rank * (kBBytes / kCluster);
      load_box_for_all(plan.b + ring.index * kBBytes + half, b, step * kDepth,
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
__device__ inline uint32_t row_scale_at(const Plan& plan, int row) {
  return plan.row_scales + static_cast<uint32_t>(row) * 4;
}

// `row`: of the tile, whose products the lane has in v[..][..][0..1]; those of row + 8 follow.
__device__ inline void scale_rows(FragmentValues<kColumns / 2> (&acc)[2], const Plan& plan, int row) {
#pragma unroll
  for (int lower = 0; lower < 2; ++lower) {
    float largest = 0;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      const auto& v = acc[j / (kColumns / 16)][j % (kColumns / 16)];
      largest = fmaxf(largest, fmaxf(fabsf(v[2 * lower]), fabsf(v[2 * lower + 1])));
    }
    const RowScale scale(max_over_lanes<4>(largest));
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      auto& v = acc[j / (kColumns / 16)][j % (kColumns / 16)];
      v[2 * lower] *= scale.to;
      v[2 * lower + 1] *= scale.to;
    }
    if (threadIdx.x % 4 == 0)
      asm volatile("st.shared.f32 [%0], %1;\n" ::"r"(row_scale_at(plan, row + 8 * lower)), "f"(scale.back) : "memory");
  }
}

template <typename T, typename Epilogue>
__device__ void multiply_tiles(const Plan& plan, const Epilogue& epilogue, int group) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  Ring<kStages> ring;
  Ring<1> finished;
  for (int t = plan.first_tile; t < plan.tiles; t += plan.tile_step) {
    FragmentValues<kColumns / 2> acc[2];  // the left and the right half
    int previous = -1;
    for (int step = 0; step < plan.steps; ++step, ring.advance()) {
      wait(plan.full + 8 * ring.index, ring.parity);
      begin_products();
      uint64_t a = operand(plan.a + ring.index * kABytes + group * (kABytes / 2));
      uint64_t b = operand(plan.b + ring.index * kBBytes);
#pragma unroll
      for (int k = 0; k < kDepth / 16; ++k)  // 32 bytes further within the swizzled rows
#pragma unroll
        for (int half = 0; half < 2; ++half)
          multiply_async<T>(acc[half], a + 2 * k, b + half * (kBBytes / 2 >> 4) + 2 * k, step > 0 || k > 0);
      commit_products();
      wait_for_products<1>();  // the step before this one is done with its stage
      if (previous >= 0 && threadIdx.x % 128 < kCluster) arrive_at(plan.empty + 8 * previous, threadIdx.x % 128);
      previous = ring.index;
    }
    wait_for_products<0>();
    hold(acc[0]);
    hold(acc[1]);
    if (threadIdx.x % 128 < kCluster) arrive_at(plan.empty + 8 * previous, threadIdx.x % 128);

#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) round_first(epilogue, acc[j / (kColumns / 16)][j % (kColumns / 16)]);
    wait(plan.tile_empty, finished.parity ^ 1);
    if constexpr (std::is_same_v<T, __half>) scale_rows(acc, plan, group * 64 + warp * 16 + lane / 4);
    int row = group * 64 + warp * 16 + lane % 16;
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const auto& left = acc[j / (kColumns / 16)][j % (kColumns / 16)];
      const auto& right = acc[j / (kColumns / 16)][j % (kColumns / 16) + 1];
      store_fragments<T>(plan.tile + FinishedTile::at(row, j + lane / 16), left, right);
    }
    arrive_as_warp(plan.tile_full);
    finished.advance();
  }
}

// `row_data`: (2, kRows), for this tile and the next one: a fast warp may begin the next while another still reads.
template <typename T, typename Epilogue>
__device__ void finish_tiles(const Plan& plan, const ProductShape& shape, const Epilogue& epilogue, uint32_t rank,
                             typename Epilogue::Row (*row_data)[kRows], int finisher) {
  constexpr int kAhead = rows_ahead<Epilogue>(144, 4);  // of 96 registers
  int lane = threadIdx.x % 32;
  Ring<1> finished;
  Ring<2> rows_ring;
  for (int t = plan.first_tile; t < plan.tiles; t += plan.tile_step, finished.advance(), rows_ring.advance()) {
    int64_t first_row = plan.first_row(t, rank);
    int tile = plan.column_tile(t), column = tile * kColumns + lane * 8;
    const auto* rows = row_data[rows_ring.index];
    for (int r = finisher * 32 + lane; r < kRows; r += 32 * kFinishers)
      if (first_row + r < shape.rows) row_data[rows_ring.index][r] = epilogue.row(first_row + r);
    asm volatile("bar.sync 1, %0;\n" ::"n"(32 * kFinishers) : "memory");
    auto columns = epilogue.columns(column, column < shape.columns);
    for (int first = finisher * kAhead; first < kRows; first += kFinishers * kAhead) {
      RowPlace places[kAhead];
      typename Epilogue::Fetched fetched[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        int64_t row = first_row + first + i;
        places[i] = {row, column, tile, row < shape.rows && column < shape.columns};
        fetched[i] = epilogue.fetch(places[i], columns, rows[first + i]);
      }
      if (first == finisher * kAhead) wait(plan.tile_full, finished.parity);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        Stored8<T> product;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];\n"
                     : "=r"(product.raw.x), "=r"(product.raw.y), "=r"(product.raw.z), "=r"(product.raw.w)
                     : "r"(plan.tile + FinishedTile::at(first + i, lane)));
        float v[8];
        product.unpack(v);
        if constexpr (std::is_same_v<T, __half>) {
          float back;
          asm volatile("ld.shared.f32 %0, [%1];\n" : "=f"(back) : "r"(row_scale_at(plan, first + i)));
#pragma unroll
          for (float& value : v) value *= back;
        }
        epilogue.template apply<32>(v, places[i], columns, rows[first + i], fetched[i]);
      }
    }
    arrive_as_warp(plan.tile_empty);
  }
}

#endif  // __CUDA_ARCH_FEAT_SM90_ALL

// Launched in clusters of kCluster.
template <typename T, typename Epilogue>
__global__ void __launch_bounds__(kThreads, 1)
    gemm_sm90_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                     const ProductShape shape, const __grid_constant__ Epilogue epilogue) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ char shared_memory[];
  __shared__ typename Epilogue::Row row_data[2][kRows];
  Plan plan(static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory)), shape);
  uint32_t rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      initialise_barrier(plan.full + 8 * stage, 1);
      initialise_barrier(plan.empty + 8 * stage, 2 * kCluster);
    }
    initialise_barrier(plan.tile_full, kMultipliers);
    initialise_barrier(plan.tile_empty, kFinishers);
    asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
  }
  cluster_barrier();
  // Warpgroups 1 and 2 multiply; warp 0 loads; warps 1-3 and 12-15 finish. 160 and 96 registers fill the 65,536.
  int warp = static_cast<int>(threadIdx.x) / 32, group = warp / 4;
  if (group == 1 || group == 2) {
    take_registers<160>();
    multiply_tiles<T>(plan, epilogue, group - 1);
  } else {
    give_registers<96>();
    if (warp > 0)
      finish_tiles<T>(plan, shape, epilogue, rank, row_data, group == 0 ? warp - 1 : warp - 9);
    else if (threadIdx.x == 0)
      load_tiles(plan, a, b, rank);
  }
  cluster_barrier();  // nobody leaves while the other may still write to it
#endif
}

}  // namespace gemm_sm90

// Row sums of squares come in parts of 256 columns.
template <typename T, typename Epilogue>
void launch_gemm_sm90(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) {
  using namespace gemm_sm90;
  LaunchShape shape{dim3(kCluster), kThreads, kSharedBytes, kCluster};
  int tiles = divide_up(operands.rows, kRows * kCluster) * divide_up(operands.columns, kColumns);
  shape.grid.x =
      static_cast<unsigned>(kCluster * std::min(active_clusters(gemm_sm90_kernel<T, Epilogue>, shape), tiles));
  CUtensorMap a = make_tensor_map(operands.a, operands.rows, operands.depth, operands.a_stride, kRows);
  CUtensorMap b = make_tensor_map(operands.b, operands.columns, operands.depth, operands.depth, kColumns / kCluster);
  launch_kernel(gemm_sm90_kernel<T, Epilogue>, shape, stream, a, b,
                ProductShape{operands.rows, operands.columns, operands.depth}, epilogue);
}

}  // namespace thimble
