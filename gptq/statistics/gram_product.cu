// gram_product.cu: one CTA of 256 threads per tile and piece. Tokens pass through shared memory in chunks of 8 KiB per
// operand, four chunks deep (cp.async). Both operands are rows of X as they lie in memory.
#include <cuda_pipeline.h>

#include "gptq/statistics/gram_product.cuh"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {
namespace {

constexpr int kThreads = 256;
constexpr int kStages = 4;

// A chunk of tokens of kGramTile columns in shared memory.
template <typename T>
struct Chunk {
  static constexpr int kVector = 16 / sizeof(T);
  static constexpr int kTokens = 64 / sizeof(T);
  static constexpr int kStride = kGramTile + kVector;  // rows begin in different banks
  static constexpr int kElements = kTokens * kStride;
};

// Up to kTokens rows from `from`, `rows` of which and `columns` of whose columns exist; zeros elsewhere.
// kWhole: every 16 bytes of a row are aligned and exist together, or not at all.
template <bool kWhole, typename T>
__device__ void load_chunk(T* chunk, const T* from, int64_t stride, int64_t rows, int64_t columns) {
  constexpr int kVector = Chunk<T>::kVector, kRowVectors = kGramTile / kVector;
#pragma unroll
  for (int i = 0; i < Chunk<T>::kTokens * kRowVectors / kThreads; ++i) {
    int vector = threadIdx.x + i * kThreads, row = vector / kRowVectors, column = vector % kRowVectors * kVector;
    T* to = chunk + row * Chunk<T>::kStride + column;
    if constexpr (kWhole) {
      bool exists = row < rows && column < columns;
      __pipeline_memcpy_async(to, exists ? from + row * stride + column : from, 16, exists ? 0 : 16);
    } else {
      for (int c = 0; c < kVector; ++c)
        to[c] = row < rows && column + c < columns ? from[row * stride + column + c] : T(0.0F);
    }
  }
}

// Four 8 x 8 matrices of a chunk, transposed on the way: lane 8 q + r gives the address of row r (a token) of matrix q,
// and each lane gets elements (2 (lane % 4), + 1) of column lane / 4 of all four. That is how mma wants both operands.
__device__ void load_transposed(uint32_t (&matrices)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(matrices[0]), "=r"(matrices[1]), "=r"(matrices[2]), "=r"(matrices[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}

// sums (16, 8) += a (16, 16) b (16, 8)
__device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t* b, const __nv_bfloat16*) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ void multiply_add(float (&sums)[4], const uint32_t (&a)[4], const uint32_t* b, const __half*) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// Each warp 32 x 64 of the tile: 2 x 8 products of 16 x 8. T: of 16 bits.
template <typename T>
class TensorAccumulator {
 public:
  using Element = T;

  __device__ void add(const Element* a, const Element* b) {
    constexpr int kStride = Chunk<Element>::kStride;
    // Matrices of the left operand: tokens 0-7 of columns 0-7 and 8-15, then tokens 8-15 of both. Of the right one:
    // tokens 0-7 and 8-15 of columns 0-7, then of columns 8-15.
    int lane = threadIdx.x % 32, near = lane / 8 % 2 * 8, far = lane / 16 * 8, token = lane % 8;
    const Element* left_row = a + (token + far) * kStride + first_row() + near;
    const Element* right_row = b + (token + near) * kStride + first_column() + far;
#pragma unroll
    for (int k = 0; k < Chunk<Element>::kTokens; k += 16) {
      uint32_t left[2][4], right[4][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) load_transposed(left[i], left_row + k * kStride + 16 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) load_transposed(right[j], right_row + k * kStride + 16 * j);
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) multiply_add(sums_[i][j], left[i], right[j / 2] + j % 2 * 2, a);
    }
  }
  __device__ void store(float* tile) const {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float* at = tile + (first_row() + 16 * i + lane / 4) * kGramTile + first_column() + 8 * j + lane % 4 * 2;
        *reinterpret_cast<float2*>(at) = make_float2(sums_[i][j][0], sums_[i][j][1]);
        *reinterpret_cast<float2*>(at + 8 * kGramTile) = make_float2(sums_[i][j][2], sums_[i][j][3]);
      }
  }

 private:
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 32 % 4 * 32; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) / 128 * 64; }

  float sums_[2][8][4] = {};
};

// Each thread 8 x 8 of the tile: two groups of four rows and of four columns, 64 apart.
class Fp32Accumulator {
 public:
  using Element = float;

  __device__ void add(const float* a, const float* b) {
    constexpr int kStride = Chunk<float>::kStride;
#pragma unroll
    for (int k = 0; k < Chunk<float>::kTokens; ++k) {
      float left[8], right[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        *reinterpret_cast<float4*>(left + 4 * half) =
            *reinterpret_cast<const float4*>(a + k * kStride + first_row() + 64 * half);
        *reinterpret_cast<float4*>(right + 4 * half) =
            *reinterpret_cast<const float4*>(b + k * kStride + first_column() + 64 * half);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums_[i][j] = fmaf(left[i], right[j], sums_[i][j]);
    }
  }
  __device__ void store(float* tile) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int row = first_row() + i % 4 + i / 4 * 64, column = first_column() + 64 * half;
        *reinterpret_cast<float4*>(tile + row * kGramTile + column) =
            make_float4(sums_[i][4 * half], sums_[i][4 * half + 1], sums_[i][4 * half + 2], sums_[i][4 * half + 3]);
      }
  }

 private:
  __device__ static int first_row() { return static_cast<int>(threadIdx.x) / 16 * 4; }
  __device__ static int first_column() { return static_cast<int>(threadIdx.x) % 16 * 4; }

  float sums_[8][8] = {};
};

template <typename Accumulator, bool kWhole>
__global__ void __launch_bounds__(kThreads, 2)
    gram_kernel(GramInput<typename Accumulator::Element> input, int64_t first_piece, float* products) {
  using T = typename Accumulator::Element;
  extern __shared__ __align__(128) std::byte shared[];
  T* chunks = reinterpret_cast<T*>(shared);
  GramTile tile = gram_tile(blockIdx.x);
  bool diagonal = tile.row == tile.column;

  int64_t piece = first_piece + blockIdx.y, pieces = input.pieces();
  int64_t first_token = piece % pieces * GramInput<T>::kPieceTokens;
  int64_t tokens = min(GramInput<T>::kPieceTokens, input.tokens - first_token);
  const T* x = input.x + (piece / pieces * input.tokens + first_token) * input.stride;

  auto load = [&](int index) {
    T* left = chunks + index % kStages * 2 * Chunk<T>::kElements;
    int64_t token = static_cast<int64_t>(index) * Chunk<T>::kTokens;
    if (token < tokens) {
      const T* from = x + token * input.stride;
      load_chunk<kWhole>(left, from + tile.row, input.stride, tokens - token, input.columns - tile.row);
      if (!diagonal)
        load_chunk<kWhole>(left + Chunk<T>::kElements, from + tile.column, input.stride, tokens - token,
                           input.columns - tile.column);
    }
    __pipeline_commit();
  };
  for (int stage = 0; stage < kStages - 1; ++stage) load(stage);

  Accumulator sums;
  for (int index = 0; static_cast<int64_t>(index) * Chunk<T>::kTokens < tokens; ++index) {
    __pipeline_wait_prior(kStages - 2);
    __syncthreads();  // the chunk is there for all, and all are done with the one that the next load replaces
    load(index + kStages - 1);
    const T* left = chunks + index % kStages * 2 * Chunk<T>::kElements;
    sums.add(left, diagonal ? left : left + Chunk<T>::kElements);
  }
  sums.store(products + (blockIdx.y * static_cast<int64_t>(gridDim.x) + blockIdx.x) * kGramTileElements);
}

template <typename Accumulator>
void launch(const GramInput<typename Accumulator::Element>& input, int64_t first_piece, int64_t piece_count,
            float* products, cudaStream_t stream) {
  using T = typename Accumulator::Element;
  constexpr size_t kSharedBytes = kStages * 2 * Chunk<T>::kElements * sizeof(T);
  bool whole = reinterpret_cast<uintptr_t>(input.x) % 16 == 0 && input.stride % Chunk<T>::kVector == 0 &&
               input.columns % Chunk<T>::kVector == 0;
  auto kernel = whole ? gram_kernel<Accumulator, true> : gram_kernel<Accumulator, false>;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  dim3 grid(static_cast<unsigned>(gram_tiles(input.columns)), static_cast<unsigned>(piece_count));
  kernel<<<grid, kThreads, kSharedBytes, stream>>>(input, first_piece, products);
  check_cuda(cudaGetLastError());
}

}  // namespace

void multiply_gram(const GramInput<__nv_bfloat16>& input, int64_t first_piece, int64_t piece_count, float* products,
                   cudaStream_t stream) {
  launch<TensorAccumulator<__nv_bfloat16>>(input, first_piece, piece_count, products, stream);
}

void multiply_gram(const GramInput<__half>& input, int64_t first_piece, int64_t piece_count, float* products,
                   cudaStream_t stream) {
  launch<TensorAccumulator<__half>>(input, first_piece, piece_count, products, stream);
}

void multiply_gram(const GramInput<float>& input, int64_t first_piece, int64_t piece_count, float* products,
                   cudaStream_t stream) {
  launch<Fp32Accumulator>(input, first_piece, piece_count, products, stream);
}

}  // namespace thimble
