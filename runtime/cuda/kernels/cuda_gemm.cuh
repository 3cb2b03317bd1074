// cuda_gemm.cuh: C = A B^T on any CUDA device since sm_80, handed to an epilogue that fuses what follows the product.
//   A (P, K) activations, B (N, K) weights, both row-major, K a multiple of 8.  T = __nv_bfloat16, __half: tensor cores
//   (mma.sync, 16 bits in, fp32 accumulation).  T = float: plain fp32 arithmetic, k ascending.
//
// One CTA of four warps computes a tile of 64 * kRowFragments x kColumns; each warp owns whole rows of the tile:
//
//        kColumns                        Every lane of a warp holds, per fragment of 16 rows, the pairs
//   +---------------+  16 rows           (row l/4, columns 8j + 2(l%4) + {0,1}) in value[j][0..1] and
//   | warp 0        |  x kRowFragments   (row l/4 + 8, the same columns) in value[j][2..3],
//   | warp 1        |                    the layout of mma.m16n8k16. The tile then passes through shared memory, so
//   that | warp 2        |                    the epilogue (cuda_epilogues.cuh) sees rows: kColumns / 8 lanes hold one,
//   eight | warp 3        |                    consecutive columns each.
//   +---------------+
//
// A row's result depends on its own values and the weights alone: sums over k run in the same order in every tile.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_epilogues.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {

// value[j][...] of a fragment of 16 x kColumns (see above).
template <int kColumns>
using FragmentValues = float[kColumns / 8][4];

template <typename T>
struct GemmOperands {
  const T* a;
  int64_t a_stride;
  const T* b;  // (columns, depth), stride depth
  int64_t rows;
  int columns, depth;  // columns a multiple of 8
};

namespace gemm_detail {

constexpr int kRowBytes = 128;  // bytes of a tile row that one pipeline stage holds: 64 of 16 bits or 32 float
constexpr int kThreads = 128;

// Rows of kBytes in shared memory. Their 16-byte chunks are permuted by the row's index, so that eight rows' equal
// columns lie in different banks.
template <int kBytes>
struct SharedTile {
  static constexpr int kRowBytes = kBytes, kRowChunks = kBytes / 16;
  static constexpr int kRowsPerLine = kBytes >= 128 ? 1 : 128 / kBytes;  // shorter rows share one line of banks
  static constexpr int kMask = (kRowChunks < 8 ? kRowChunks : 8) - 1;
  __device__ static constexpr uint32_t at(int row, int chunk) {
    return static_cast<uint32_t>(row * kBytes + ((chunk ^ (row / kRowsPerLine & kMask)) << 4));
  }
};
using StageTile = SharedTile<kRowBytes>;

__device__ inline void copy_async(uint32_t shared, const void* global, bool exists) {
  int bytes = exists ? 16 : 0;  // the rest of the 16 bytes becomes zero
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared), "l"(global), "r"(bytes));
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n"); }
template <int kPending>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending));
}

__device__ inline void load_matrices(uint32_t (&values)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(shared));
}
__device__ inline void load_matrices_transposed(uint32_t (&values)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(values[0]), "=r"(values[1]), "=r"(values[2]), "=r"(values[3])
               : "r"(shared));
}
template <typename T>
__device__ void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const T*) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.%10.%10.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "C"(PtxType<T>::kName));
}

// Rows [first, first + kRows) of `source`, bytes [offset, offset + Tile::kRowBytes) of them, to `shared`; what does not
// exist is zero.
template <typename Tile, int kRows>
__device__ void load_tile(uint32_t shared, const char* source, int64_t stride_bytes, int64_t first, int64_t rows,
                          int offset, int row_bytes) {
#pragma unroll
  for (int i = 0; i < kRows * Tile::kRowChunks / kThreads; ++i) {
    int index = i * kThreads + static_cast<int>(threadIdx.x);
    int row = index / Tile::kRowChunks, chunk = index % Tile::kRowChunks;
    bool exists = first + row < rows && offset + chunk * 16 < row_bytes;
    const char* from = source + (exists ? (first + row) * stride_bytes + offset + chunk * 16 : 0);
    copy_async(shared + Tile::at(row, chunk), from, exists);
  }
}

// acc += A B^T over the columns of K that the tiles' rows hold.
template <int kRowFragments, int kColumns, typename Tile, typename T>
__device__ void multiply_tiles(FragmentValues<kColumns> (&acc)[kRowFragments], uint32_t a_tile, uint32_t b_tile,
                               const T* type) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int k = 0; k < Tile::kRowChunks / 2; ++k) {  // 16 columns of K each
    uint32_t a[kRowFragments][4];
#pragma unroll
    for (int f = 0; f < kRowFragments; ++f)
      load_matrices(a[f], a_tile + Tile::at((warp * kRowFragments + f) * 16 + lane % 16, 2 * k + lane / 16));
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      uint32_t b[4];
      load_matrices(b, b_tile + Tile::at(j * 8 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
      for (int f = 0; f < kRowFragments; ++f) {
        multiply_add(acc[f][j], a[f], b[0], b[1], type);
        multiply_add(acc[f][j + 1], a[f], b[2], b[3], type);
      }
    }
  }
}

__device__ inline float4 load_shared(uint32_t shared) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0,%1,%2,%3}, [%4];\n"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(shared));
  return value;
}
__device__ inline void add_dot(float& sum, float4 a, float4 b) {
  sum = fmaf(a.x, b.x, sum);
  sum = fmaf(a.y, b.y, sum);
  sum = fmaf(a.z, b.z, sum);
  sum = fmaf(a.w, b.w, sum);
}

template <int kRowFragments, int kColumns, typename Tile>
__device__ void multiply_tiles(FragmentValues<kColumns> (&acc)[kRowFragments], uint32_t a_tile, uint32_t b_tile,
                               const float*) {
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  constexpr int kUnrolled = Tile::kRowChunks > 8 ? 2 : 8;  // longer rows would take too many registers
#pragma unroll kUnrolled
  for (int chunk = 0; chunk < Tile::kRowChunks; ++chunk) {
    float4 upper[kRowFragments], lower[kRowFragments];
#pragma unroll
    for (int f = 0; f < kRowFragments; ++f) {
      int row = (warp * kRowFragments + f) * 16 + lane / 4;
      upper[f] = load_shared(a_tile + Tile::at(row, chunk));
      lower[f] = load_shared(a_tile + Tile::at(row + 8, chunk));
    }
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      float4 left = load_shared(b_tile + Tile::at(j * 8 + lane % 4 * 2, chunk));
      float4 right = load_shared(b_tile + Tile::at(j * 8 + lane % 4 * 2 + 1, chunk));
#pragma unroll
      for (int f = 0; f < kRowFragments; ++f) {
        add_dot(acc[f][j][0], upper[f], left);
        add_dot(acc[f][j][1], upper[f], right);
        add_dot(acc[f][j][2], lower[f], left);
        add_dot(acc[f][j][3], lower[f], right);
      }
    }
  }
}

template <typename T, int kRowFragments, int kColumns, int kStages, typename Epilogue>
__global__ void __launch_bounds__(kThreads)
    gemm_kernel(const GemmOperands<T> operands, const __grid_constant__ Epilogue epilogue) {
  constexpr int kRows = 64 * kRowFragments, kStageBytes = (kRows + kColumns) * kRowBytes;
  extern __shared__ __align__(1024) char shared_memory[];
  auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(shared_memory));
  int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  int first_column = static_cast<int>(blockIdx.x) * kColumns;
  int row_bytes = operands.depth * static_cast<int>(sizeof(T)), stages = divide_up(row_bytes, kRowBytes);

  auto load_stage = [&](int stage) {
    uint32_t at = shared + static_cast<uint32_t>(stage % kStages * kStageBytes);
    load_tile<StageTile, kRows>(at, reinterpret_cast<const char*>(operands.a),
                                operands.a_stride * static_cast<int64_t>(sizeof(T)), first_row, operands.rows,
                                stage * kRowBytes, row_bytes);
    load_tile<StageTile, kColumns>(at + kRows * kRowBytes, reinterpret_cast<const char*>(operands.b), row_bytes,
                                   first_column, operands.columns, stage * kRowBytes, row_bytes);
  };

  FragmentValues<kColumns> acc[kRowFragments] = {};
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < stages) load_stage(stage);
    commit_copies();
  }
  for (int stage = 0; stage < stages; ++stage) {
    wait_for_copies<kStages - 2>();
    __syncthreads();  // the stage has arrived for all, and all have left the one that is loaded next
    if (stage + kStages - 1 < stages) load_stage(stage + kStages - 1);
    commit_copies();
    uint32_t at = shared + static_cast<uint32_t>(stage % kStages * kStageBytes);
    multiply_tiles<kRowFragments, kColumns, StageTile>(acc, at, at + kRows * kRowBytes, static_cast<const T*>(nullptr));
  }
  wait_for_copies<0>();
  __syncthreads();  // the stages' memory is free now
  // Rows of kColumns floats and four more, which keep the fragments' rows in different banks.
  constexpr int kStride = kColumns + 4, kLanes = kColumns / 8, kRowsPerPass = kThreads / kLanes;
  auto* tile = reinterpret_cast<float*>(shared_memory);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
  for (int f = 0; f < kRowFragments; ++f) {
    float* at = tile + ((warp * kRowFragments + f) * 16 + lane / 4) * kStride + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      store_pair(at + 8 * j, {acc[f][j][0], acc[f][j][1]});
      store_pair(at + 8 * kStride + 8 * j, {acc[f][j][2], acc[f][j][3]});
    }
  }
  __shared__ typename Epilogue::Row row_data[kRows];
  for (int r = static_cast<int>(threadIdx.x); r < kRows; r += kThreads)
    row_data[r] = epilogue.row(min(first_row + r, operands.rows - 1));
  __syncthreads();
  int column = first_column + static_cast<int>(threadIdx.x) % kLanes * 8;
  auto columns = epilogue.columns(column, column < operands.columns);
  constexpr int kPasses = kRows / kRowsPerPass, kAhead = rows_ahead<Epilogue>(352, kPasses < 8 ? kPasses : 8);
  for (int first = static_cast<int>(threadIdx.x) / kLanes; first < kRows; first += kAhead * kRowsPerPass) {
    RowPlace places[kAhead];
    typename Epilogue::Fetched fetched[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      int64_t row = first_row + first + i * kRowsPerPass;
      places[i] = {row, column, static_cast<int>(blockIdx.x), row < operands.rows && column < operands.columns};
      fetched[i] = epilogue.fetch(within_rows(places[i], operands.rows), columns, row_data[first + i * kRowsPerPass]);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      float v[8];
      int r = first + i * kRowsPerPass;
      load_floats(tile + r * kStride + column - first_column, v);
      round_first(epilogue, v);
      epilogue.template apply<kLanes>(v, places[i], columns, row_data[r], fetched[i]);
    }
  }
}

}  // namespace gemm_detail

// Tiles of 64 * kRowFragments rows and kColumns columns.
template <typename T, int kRowFragments, int kColumns, int kStages, typename Epilogue>
void launch_gemm(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) {
  constexpr int kRows = 64 * kRowFragments;
  constexpr int kStageBytes = kStages * (kRows + kColumns) * gemm_detail::kRowBytes;
  constexpr int kSharedBytes = std::max<int>(kStageBytes, kRows * (kColumns + 4) * sizeof(float));
  dim3 grid(static_cast<unsigned>(divide_up(operands.columns, kColumns)),
            static_cast<unsigned>(divide_up(operands.rows, kRows)));
  launch_kernel(gemm_detail::gemm_kernel<T, kRowFragments, kColumns, kStages, Epilogue>,
                {grid, gemm_detail::kThreads, kSharedBytes}, stream, operands, epilogue);
}

}  // namespace thimble
