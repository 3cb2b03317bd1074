// step_product.cuh: a candidate for products of few rows, those of one position of each sequence: C = A B^T in bf16 or
// fp16 with the operands, epilogues and contract of cuda_gemm.cuh. cuda_step_products_bench compares it.
//
// What such a product waits for is memory's latency, not its bandwidth: with 64 rows cuda_gemm.cuh has one CTA for 64
// columns, which walks along K a stage at a time. Here many more CTAs, and in each eight warps that share K:
//
//   CTA    16 rows x kColumns        every warp has accumulators of the whole tile
//   warp   chunks w, w + 8, ...      of 32 columns of K, read from memory straight into registers, kAhead at a time;
//                                    sums of the eight are added in their order
//
// A kernel may begin while the one before it ends (programmatic dependent launch): it reads weights, which nothing
// writes, and only then waits for what the others have written.
// A lane reads 16 bytes of a row, eight columns k of which mma.m16n8k16 wants pairs that lie elsewhere: since operands
// A and B are read alike, columns of K only change their names.
// A row's result depends on its own values and the weights alone: the order over K follows from K.
#pragma once

#include "runtime/cuda/kernels/cuda_gemm.cuh"

namespace thimble {
namespace step_product {

constexpr int kRows = 16, kWarps = 8, kThreads = 32 * kWarps;
constexpr int kChunk = 32, kLaneElements = 8;  // of K: a warp's, and a lane's 16 bytes

// Lets the next kernel begin; waits for the ones before. Of kernels that were not launched to overlap both do nothing.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

template <int kColumns>
struct Chunk {
  uint4 a[2];             // of rows lane / 4 and lane / 4 + 8
  uint4 b[kColumns / 8];  // of columns 8 j + lane / 4
};

template <typename T, int kColumns>
__device__ void multiply_chunk(FragmentValues<kColumns>& sums, const Chunk<kColumns>& c) {
  const uint32_t first[4] = {c.a[0].x, c.a[1].x, c.a[0].y, c.a[1].y};
  const uint32_t second[4] = {c.a[0].z, c.a[1].z, c.a[0].w, c.a[1].w};
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    gemm_detail::multiply_add(sums[j], first, c.b[j].x, c.b[j].y, static_cast<const T*>(nullptr));
    gemm_detail::multiply_add(sums[j], second, c.b[j].z, c.b[j].w, static_cast<const T*>(nullptr));
  }
}

template <typename T, int kColumns, typename Epilogue>
__global__ void __launch_bounds__(kThreads)
    step_product_kernel(const GemmOperands<T> operands, const __grid_constant__ Epilogue epilogue) {
  constexpr int kAhead = 96 / (8 + kColumns / 2);  // chunks in 96 registers
  constexpr int kLanes = kColumns / 8;             // that hold a row for the epilogue
  __shared__ __align__(16) float partial[kWarps][kRows][kColumns + 4];
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int chunks = divide_up(operands.depth, kChunk);

  // Rows and columns that do not exist repeat the last one, and nothing of them is stored.
  const T *a[2], *b[kColumns / 8];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int64_t row = min(first_row + lane / 4 + 8 * i, operands.rows - 1);
    a[i] = operands.a + row * operands.a_stride + lane % 4 * kLaneElements;
  }
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    const int64_t column = min(first_column + 8 * j + lane / 4, operands.columns - 1);
    b[j] = operands.b + column * operands.depth + lane % 4 * kLaneElements;
  }
  // Beyond K all is zero.
  auto exists = [&](int index) { return index * kChunk + lane % 4 * kLaneElements < operands.depth; };
  auto load_b = [&](int index, Chunk<kColumns>& chunk) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
      chunk.b[j] = exists(index) ? *reinterpret_cast<const uint4*>(b[j] + index * kChunk) : uint4{};
  };
  auto load_a = [&](int index, Chunk<kColumns>& chunk) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      chunk.a[i] = exists(index) ? *reinterpret_cast<const uint4*>(a[i] + index * kChunk) : uint4{};
  };

  let_next_begin();
  Chunk<kColumns> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_b(warp + i * kWarps, ahead[i]);
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_a(warp + i * kWarps, ahead[i]);

  // What the epilogue reads is on its way meanwhile, for whole warps of lanes.
  const int r = static_cast<int>(threadIdx.x) / kLanes;
  const int column = first_column + static_cast<int>(threadIdx.x) % kLanes * 8;
  const bool finishes = r < kRows;
  const RowPlace place{first_row + r, column, static_cast<int>(blockIdx.x),
                       finishes && first_row + r < operands.rows && column < operands.columns};
  typename Epilogue::Columns columns{};
  typename Epilogue::Row row{};
  typename Epilogue::Fetched fetched{};
  if (finishes) {
    columns = epilogue.columns(column, column < operands.columns);
    if (first_row + r < operands.rows) row = epilogue.row(first_row + r);
    fetched = epilogue.fetch(place, columns, row);
  }

  FragmentValues<kColumns> sums = {};
  for (int first = warp; first < chunks; first += kWarps * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int index = first + i * kWarps, next = index + kWarps * kAhead;
      if (index < chunks) multiply_chunk<T, kColumns>(sums, ahead[i]);
      if (next >= chunks) continue;
      load_b(next, ahead[i]);
      load_a(next, ahead[i]);
    }
  }
#pragma unroll
  for (int j = 0; j < kColumns / 8; ++j) {
    float* to = &partial[warp][lane / 4][8 * j + lane % 4 * 2];
    store_pair(to, {sums[j][0], sums[j][1]});
    store_pair(to + 8 * (kColumns + 4), {sums[j][2], sums[j][3]});
  }
  __syncthreads();
  if (!finishes) return;
  float v[8] = {};
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    float part[8];
    load_floats(&partial[w][r][column - first_column], part);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] += part[i];
  }
  round_first(epilogue, v);
  epilogue.template apply<kLanes>(v, place, columns, row, fetched);
}

}  // namespace step_product

// Tiles of kColumns columns: 32, or as many as a head has. Epilogues leave row sums of squares in parts of kColumns.
// `overlaps`: with the kernel before it in the stream.
template <typename T, int kColumns, typename Epilogue>
void launch_step_product(const GemmOperands<T>& operands, const Epilogue& epilogue, bool overlaps,
                         cudaStream_t stream) {
  using namespace step_product;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(divide_up(operands.columns, kColumns)),
                        static_cast<unsigned>(divide_up(operands.rows, kRows)));
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = overlaps ? 1 : 0;
  check_cuda(cudaLaunchKernelEx(&config, step_product_kernel<T, kColumns, Epilogue>, operands, epilogue));
}

}  // namespace thimble
