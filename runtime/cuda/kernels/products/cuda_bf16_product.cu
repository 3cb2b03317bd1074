// cuda_bf16_product.cu: products on tensor cores (mma.sync) of factors in bf16, or of float32 factors that are rounded
// on their way to shared memory. A warp computes 64 x 32 of C. Tiles lie in shared memory as the factors are stored,
// [row][k] or [k][row]; ldmatrix turns the latter. Padding of 16 bytes spreads the eight rows that it reads at once
// over all banks.
#include <cuda_bf16.h>

#include <cassert>

#include "runtime/cuda/kernels/cuda_gemm.cuh"
#include "runtime/cuda/kernels/products/cuda_product_tiles.cuh"

namespace thimble {
namespace {

constexpr int kPadding = 8;  // elements

// A tile of kSide rows or columns of C by kDepth of K.
template <int kSide, int kDepth, bool kAlongDepth>
struct Bf16Tile {
  static constexpr int kStride = (kAlongDepth ? kDepth : kSide) + kPadding;
  __nv_bfloat16 values[kAlongDepth ? kSide : kDepth][kStride];

  __device__ void put(int side, int depth, const float4& v) {
    const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y), high = __floats2bfloat162_rn(v.z, v.w);
    const uint2 packed{reinterpret_cast<const uint32_t&>(low), reinterpret_cast<const uint32_t&>(high)};
    *reinterpret_cast<uint2*>(kAlongDepth ? &values[side][depth] : &values[depth][side]) = packed;
  }
  // Four 8 x 8 matrices, sides by k, as mma.sync wants them. This lane names stored row `row` of the one that begins at
  // (side, depth).
  __device__ void load(uint32_t (&fragment)[4], int side, int depth, int row) const {
    if constexpr (kAlongDepth)
      gemm_detail::load_matrices(fragment, address(&values[side + row][depth]));
    else
      gemm_detail::load_matrices_transposed(fragment, address(&values[depth + row][side]));
  }
  __device__ static uint32_t address(const __nv_bfloat16* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
  }
};

template <typename T, ProductForm kProductForm, int kTileColumns, bool kVector>
class Bf16Tiles {
  static constexpr bool kAlongA = kProductForm != ProductForm::kTN, kAlongB = kProductForm == ProductForm::kNT;
  static constexpr int kWarpRows = 64, kWarpColumns = 32;  // of C
  static constexpr int kRowSteps = kWarpRows / 16, kColumnSteps = kWarpColumns / 8;

 public:
  static constexpr int kRows = kCausalTile, kColumns = kTileColumns, kDepth = 32;
  static constexpr int kThreads = 32 * (kRows / kWarpRows) * (kColumns / kWarpColumns), kCtas = kColumns == 64 ? 3 : 2;
  struct Stage {
    Bf16Tile<kRows, kDepth, kAlongA> a;
    Bf16Tile<kColumns, kDepth, kAlongB> b;
  };

  __device__ Bf16Tiles(const StoredFactor<T>& a, const StoredFactor<T>& b, int first_row, int first_column)
      : a_(a, first_row), b_(b, first_column), first_row_(first_row), first_column_(first_column) {
    const int warp = threadIdx.x / 32;
    row_ = warp % (kRows / kWarpRows) * kWarpRows;
    column_ = warp / (kRows / kWarpRows) * kWarpColumns;
  }

  __device__ void load(int k) {
    a_.load(k);
    b_.load(k);
  }
  __device__ void store(Stage& stage) const {
    a_.store([&](int side, int depth, const float4& v) { stage.a.put(side, depth, v); });
    b_.store([&](int side, int depth, const float4& v) { stage.b.put(side, depth, v); });
  }
  __device__ void multiply(const Stage& stage) {
    const int lane = threadIdx.x % 32, matrix = lane / 8, row = lane % 8;
    // Of the four matrices that a lane's row belongs to: rows of C first, then k; of B, k first.
    const int low = matrix % 2 * 8, high = matrix / 2 * 8;
#pragma unroll
    for (int k = 0; k < kDepth; k += 16) {
      uint32_t left[kRowSteps][4], right[kColumnSteps / 2][4];
#pragma unroll
      for (int i = 0; i < kRowSteps; ++i) stage.a.load(left[i], row_ + 16 * i + low, k + high, row);
#pragma unroll
      for (int j = 0; j < kColumnSteps / 2; ++j) stage.b.load(right[j], column_ + 16 * j + high, k + low, row);
#pragma unroll
      for (int i = 0; i < kRowSteps; ++i)
#pragma unroll
        for (int j = 0; j < kColumnSteps; ++j)
          gemm_detail::multiply_add(sums_[i][j], left[i], right[j / 2][j % 2 * 2], right[j / 2][j % 2 * 2 + 1],
                                    static_cast<const __nv_bfloat16*>(nullptr));
    }
  }
  template <typename C>
  __device__ void write(const BasicProductOutput<C>& c, C* matrix, const ProductShape& shape) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kRowSteps; ++i)
#pragma unroll
      for (int j = 0; j < kColumnSteps; ++j)
#pragma unroll
        for (int half = 0; half < 2; ++half)
          write_sums<2>(sums_[i][j] + 2 * half, c, matrix, first_row_ + row_ + 16 * i + 8 * half + lane / 4,
                        first_column_ + column_ + 8 * j + lane % 4 * 2, shape);
  }

 private:
  TileLoader<T, kRows, kDepth, kThreads, kAlongA, kVector> a_;
  TileLoader<T, kColumns, kDepth, kThreads, kAlongB, kVector> b_;
  int first_row_, first_column_, row_, column_;
  float sums_[kRowSteps][kColumnSteps][4] = {};
};

}  // namespace

void launch_bf16_product(ProductForm form, const ProductInput& a, const ProductInput& b, const ProductOutput& c,
                         const ProductOptions& options, cudaStream_t stream) {
  ProductLauncher<Bf16Tiles, float, float>(a, b, c, options, stream).launch(form);
}

template <typename C>
void launch_product(ProductForm form, const BasicProductInput<__nv_bfloat16>& a,
                    const BasicProductInput<__nv_bfloat16>& b, const BasicProductOutput<C>& c,
                    const ProductOptions& options, cudaStream_t stream) {
  assert(options.arithmetic == ProductArithmetic::kBf16);
  if (c.rows == 0 || c.columns == 0 || options.batch.outer * options.batch.inner == 0) return;
  ProductLauncher<Bf16Tiles, __nv_bfloat16, C>(a, b, c, options, stream).launch(form);
}

template void launch_product(ProductForm, const BasicProductInput<__nv_bfloat16>&,
                             const BasicProductInput<__nv_bfloat16>&, const BasicProductOutput<float>&,
                             const ProductOptions&, cudaStream_t);
template void launch_product(ProductForm, const BasicProductInput<__nv_bfloat16>&,
                             const BasicProductInput<__nv_bfloat16>&, const BasicProductOutput<__nv_bfloat16>&,
                             const ProductOptions&, cudaStream_t);

}  // namespace thimble
