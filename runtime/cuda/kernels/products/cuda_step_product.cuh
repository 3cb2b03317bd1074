// cuda_step_product.cuh: products of few rows, those of one position of each sequence: C = A B^T in bf16 or fp16 with
// the operands, epilogues and contract of cuda_gemm.cuh.
//
// What such a product waits for is memory's latency, not its bandwidth: with 64 rows cuda_gemm.cuh has one CTA for 64
// columns, which walks along K a stage at a time. Here many more CTAs, and in each eight warps that share K:
//
//   CTA    16 kFragments rows x kColumns    every warp has accumulators of the whole tile
//   warp   chunks w, w + 8, ...             of 32 columns of K, read from memory straight into registers, kAhead at a
//                                           time; sums of the eight are added in their order
//
// A kernel may begin while the one before it ends (programmatic dependent launch, cuda_overlap.cuh): it reads weights,
// which nothing writes, and only then waits for what the others have written. A lane reads 16 bytes of a row, eight
// columns k of which mma.m16n8k16 wants pairs that lie elsewhere: since operands A and B are read alike, columns of K
// only change their names. A row's result depends on its own values and the weights alone: the order over K follows
// from K.
#pragma once

#include <type_traits>

#include "runtime/cuda/kernels/cuda_gemm.cuh"
#include "runtime/cuda/kernels/cuda_overlap.cuh"

namespace thimble {
namespace step_product {

constexpr int kWarps = 8, kThreads = 32 * kWarps;
constexpr int kChunk = 32, kLaneElements = 8;  // of K: a warp's, and a lane's 16 bytes
constexpr int kMostSquareParts = 64;           // of a norm that is read at once

template <int kFragments, int kColumns>
struct Chunk {
  uint4 a[2 * kFragments];  // of rows lane / 4 + 8 i
  uint4 b[kColumns / 8];    // of columns lane / 4 + 8 j
};

template <typename T, int kFragments, int kColumns>
__device__ void multiply_chunk(FragmentValues<kColumns> (&sums)[kFragments], const Chunk<kFragments, kColumns>& c) {
#pragma unroll
  for (int f = 0; f < kFragments; ++f) {
    const uint4 &upper = c.a[2 * f], &lower = c.a[2 * f + 1];
    const uint32_t first[4] = {upper.x, lower.x, upper.y, lower.y}, second[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      gemm_detail::multiply_add(sums[f][j], first, c.b[j].x, c.b[j].y, static_cast<const T*>(nullptr));
      gemm_detail::multiply_add(sums[f][j], second, c.b[j].z, c.b[j].w, static_cast<const T*>(nullptr));
    }
  }
}

// What a CTA's warps tell each other: sums over their shares of K, and the parts of rows' norms.
template <int kRows, int kColumns>
struct SharedSums {
  float partial[kWarps][kRows][kColumns + 4];
  float squares[kMostSquareParts][kRows];
};

// The norm that an epilogue multiplies by, or null.
template <typename Epilogue>
__device__ RowNorm* norm_of(Epilogue& epilogue) {
  if constexpr (requires { epilogue.norm; })
    return &epilogue.norm;
  else if constexpr (requires { epilogue.o.norm; })
    return &epilogue.o.norm;
  else if constexpr (requires { epilogue.rule.norm; })
    return &epilogue.rule.norm;
  else
    return nullptr;
}

template <typename T, int kFragments, int kColumns, int kAhead, typename Epilogue>
__global__ void __launch_bounds__(kThreads)
    step_product_kernel(const GemmOperands<T> operands, const __grid_constant__ Epilogue given) {
  constexpr int kRows = 16 * kFragments;
  constexpr int kLanes = kColumns / 8;  // that hold a row for the epilogue
  static_assert(kRows * kLanes <= kThreads);
  extern __shared__ __align__(16) char shared_bytes[];
  auto& [partial, squares] = *reinterpret_cast<SharedSums<kRows, kColumns>*>(shared_bytes);
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kRows;
  const int first_column = static_cast<int>(blockIdx.x) * kColumns;
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
  const int chunks = divide_up(operands.depth, kChunk);

  // Rows and columns that do not exist repeat the last one, and nothing of them is stored.
  const T *a[2 * kFragments], *b[kColumns / 8];
#pragma unroll
  for (int i = 0; i < 2 * kFragments; ++i) {
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
  auto load_b = [&](int index, Chunk<kFragments, kColumns>& chunk) {
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
      chunk.b[j] = exists(index) ? *reinterpret_cast<const uint4*>(b[j] + index * kChunk) : uint4{};
  };
  auto load_a = [&](int index, Chunk<kFragments, kColumns>& chunk) {
#pragma unroll
    for (int i = 0; i < 2 * kFragments; ++i)
      chunk.a[i] = exists(index) ? *reinterpret_cast<const uint4*>(a[i] + index * kChunk) : uint4{};
  };

  Chunk<kFragments, kColumns> ahead[kAhead];
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_b(warp + i * kWarps, ahead[i]);

  // What the epilogue reads is on its way while the warps multiply, for whole warps of lanes: what no kernel writes
  // from here on, and the rest once the one before has ended.
  const int r = static_cast<int>(threadIdx.x) / kLanes;
  const int column = first_column + static_cast<int>(threadIdx.x) % kLanes * 8;
  const bool finishes = r < kRows, has_row = finishes && first_row + r < operands.rows;
  const RowPlace place{first_row + r, column, static_cast<int>(blockIdx.x), has_row && column < operands.columns};
  const RowPlace read = within_rows(place, operands.rows);
  Epilogue epilogue = given, early = given;
  RowNorm* norm = norm_of(epilogue);
  const bool sums_squares = norm && norm->squares.count <= kMostSquareParts;
  if (sums_squares) norm_of(early)->squares = {};
  typename Epilogue::Columns columns{};
  typename Epilogue::Row row{};
  typename Epilogue::Fetched fetched{};
  auto fetch = [&] {
    if (!finishes) return;
    row = early.row(read.row);
    fetched = early.fetch(read, columns, row);
  };
  if (finishes) columns = epilogue.columns(column, column < operands.columns);
  constexpr bool kFetchesEarly = fetches_early<Epilogue>;
  if constexpr (kFetchesEarly) {
    if (sums_squares) fetch();
  }
  wait_for_previous();
  let_next_begin();
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load_a(warp + i * kWarps, ahead[i]);
  // Of a norm all parts are read at once, into shared memory; nobody needs it before the sums.
  if (sums_squares) {
    const RowSquares& from = norm->squares;
    for (int i = static_cast<int>(threadIdx.x); i < from.count * kRows; i += kThreads)
      squares[i / kRows][i % kRows] =
          from.parts[i / kRows * from.capacity + min(first_row + i % kRows, operands.rows - 1)];
    norm->squares = {&squares[0][0] - first_row, from.count, kRows};
  }
  if (!kFetchesEarly || !sums_squares) fetch();

  FragmentValues<kColumns> sums[kFragments] = {};
  for (int first = warp; first < chunks; first += kWarps * kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int index = first + i * kWarps, next = index + kWarps * kAhead;
      if (index < chunks) multiply_chunk<T>(sums, ahead[i]);
      if (next >= chunks) continue;
      load_b(next, ahead[i]);
      load_a(next, ahead[i]);
    }
  }
#pragma unroll
  for (int f = 0; f < kFragments; ++f)
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j) {
      float* to = &partial[warp][16 * f + lane / 4][8 * j + lane % 4 * 2];
      store_pair(to, {sums[f][j][0], sums[f][j][1]});
      store_pair(to + 8 * (kColumns + 4), {sums[f][j][2], sums[f][j][3]});
    }
  __syncthreads();
  if (!finishes) return;
  row = epilogue.row(read.row);
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

// Tiles of kColumns columns, 32 or 64: epilogues leave row sums of squares in parts of as many, or heads stay whole;
// where they leave none, 32 may become 64. `overlaps`: with the kernel before it in the stream.
template <typename T, int kColumns, typename Epilogue>
void launch_step_product(const GemmOperands<T>& operands, const Epilogue& epilogue, bool overlaps,
                         cudaStream_t stream) {
  using namespace step_product;
  auto tiles = [&](int rows, int columns) {
    return divide_up(operands.rows, rows) * divide_up(operands.columns, columns);
  };
  auto launch = [&]<int kFragments, int kWidth>(std::integral_constant<int, kFragments>,
                                                std::integral_constant<int, kWidth>) {
    const dim3 grid(static_cast<unsigned>(divide_up(operands.columns, kWidth)),
                    static_cast<unsigned>(divide_up(operands.rows, 16 * kFragments)));
    constexpr int kMostAhead = 96 / (8 * kFragments + kWidth / 2), kFew = 2;  // chunks in 96 registers
    auto with_ahead = [&]<int kAhead>(std::integral_constant<int, kAhead>) {
      constexpr int kBytes = sizeof(SharedSums<16 * kFragments, kWidth>);
      launch_kernel(step_product_kernel<T, kFragments, kWidth, kAhead, Epilogue>, {grid, kThreads, kBytes, 1, overlaps},
                    stream, operands, epilogue);
    };
    if constexpr (kMostAhead > kFew) {  // registers that are not needed would keep the next kernel from beginning
      if (operands.depth <= kFew * kWarps * kChunk) return with_ahead(std::integral_constant<int, kFew>());
    }
    with_ahead(std::integral_constant<int, kMostAhead>());
  };
  constexpr std::integral_constant<int, 1> one;
  constexpr std::integral_constant<int, 2> two;
  constexpr std::integral_constant<int, kColumns> columns;
  constexpr std::integral_constant<int, 64> wide;
  if constexpr (kColumns == 32) {
    // More than the device runs at once, which is one on each multiprocessor: wider tiles, whose weights are on their
    // way while inputs are waited for; or taller ones, which also read the weights less often; or both.
    const int at_once = multiprocessors();
    if (tiles(16, 32) > at_once) {
      if constexpr (!leaves_squares<Epilogue>) {
        if (tiles(16, 64) <= at_once) return launch(one, wide);
        if (tiles(32, 32) > at_once) return launch(two, wide);
      }
      return launch(two, columns);
    }
  }
  launch(one, columns);
}

}  // namespace thimble
