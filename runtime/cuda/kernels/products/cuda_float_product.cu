// cuda_float_product.cu: products in float32 arithmetic, 8 x 8 elements of C a thread:
//
//            kColumns                    Both tiles lie in shared memory as [k][row or column]. A thread's 8 rows are
//        +---+---+---+---+               two groups of 4, 64 apart, and so its columns, kColumns / 2 apart; a warp's 32
//   128  | w |   |   |   |   w: 32 x 64  threads are 4 x 8 of them.
//        +---+---+---+---+
//
// Operands whose stored rows run along K are transposed on the way. Then neighbouring threads write columns 4k .. 4k+3
// of neighbouring rows; the row index is permuted by k / 4, so that these lie in different banks.
#include "runtime/cuda/kernels/products/cuda_float_product.cuh"

#include "runtime/cuda/kernels/products/cuda_product_tiles.cuh"

namespace thimble {
namespace {

__device__ int permuted(int k, int index) { return index ^ (k / 4 % 4 * 8); }

__device__ void unpack4(const float* from, float* to) {
  float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

template <typename T, ProductForm kProductForm, int kTileColumns, bool kVector>
class FloatTiles {
 public:
  static constexpr int kRows = kCausalTile, kColumns = kTileColumns, kDepth = 16;
  static constexpr int kThreads = kRows * kColumns / 64, kCtas = kColumns == 64 ? 3 : 2;
  struct Stage {
    float a[kDepth][kRows], b[kDepth][kColumns];
  };

  __device__ FloatTiles(const StoredFactor<T>& a, const StoredFactor<T>& b, int first_row, int first_column)
      : a_(a, first_row), b_(b, first_column), first_row_(first_row), first_column_(first_column) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    row_ = (warp / (kColumns / 64) * 4 + lane / 8) * 4;
    column_ = (warp % (kColumns / 64) * 8 + lane % 8) * 4;
  }

  __device__ void load(int k) {
    a_.load(k);
    b_.load(k);
  }
  __device__ void store(Stage& stage) const {
    put<kRows, kProductForm != ProductForm::kTN>(a_, stage.a);
    put<kColumns, kProductForm == ProductForm::kNT>(b_, stage.b);
  }
  __device__ void multiply(const Stage& stage) {
#pragma unroll
    for (int k = 0; k < kDepth; ++k) {
      float left[8], right[8];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        unpack4(&stage.a[k][permuted(k, row_ + half * kRows / 2)], left + 4 * half);
        unpack4(&stage.b[k][permuted(k, column_ + half * kColumns / 2)], right + 4 * half);
      }
#pragma unroll
      for (int i = 0; i < 8; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j) sums_[i][j] = fmaf(left[i], right[j], sums_[i][j]);
    }
  }
  template <typename C>
  __device__ void write(const BasicProductOutput<C>& c, C* matrix, const ProductShape& shape) const {
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        write_sums<4>(sums_[i] + 4 * half, c, matrix, first_row_ + row_ + i % 4 + i / 4 * (kRows / 2),
                      first_column_ + column_ + half * (kColumns / 2), shape);
  }

 private:
  template <int kSide, bool kAlongDepth, typename Loader>
  __device__ static void put(const Loader& loader, float (&tile)[kDepth][kSide]) {
    loader.store([&](int side, int depth, const float4& values) {
      const int at = permuted(depth, side);  // the same for depth .. depth + 3
      if constexpr (kAlongDepth) {
        tile[depth][at] = values.x;
        tile[depth + 1][at] = values.y;
        tile[depth + 2][at] = values.z;
        tile[depth + 3][at] = values.w;
      } else {
        *reinterpret_cast<float4*>(&tile[depth][at]) = values;
      }
    });
  }

  TileLoader<T, kRows, kDepth, kThreads, kProductForm != ProductForm::kTN, kVector> a_;
  TileLoader<T, kColumns, kDepth, kThreads, kProductForm == ProductForm::kNT, kVector> b_;
  int first_row_, first_column_, row_, column_;
  float sums_[8][8] = {};
};

}  // namespace

void launch_product(ProductForm form, const ProductInput& a, const ProductInput& b, const ProductOutput& c,
                    const ProductOptions& options, cudaStream_t stream) {
  if (c.rows == 0 || c.columns == 0 || options.batch.outer * options.batch.inner == 0) return;
  if (options.arithmetic == ProductArithmetic::kBf16)
    launch_bf16_product(form, a, b, c, options, stream);
  else
    ProductLauncher<FloatTiles, float, float>(a, b, c, options, stream).launch(form);
}

}  // namespace thimble
