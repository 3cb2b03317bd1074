// cuda_float_product.cu: one CTA computes a tile of 128 x kColumns of C, 8 x 8 elements a thread. It walks along K in
// steps of 16, of which one lies in shared memory while the next is on its way through registers:
//
//            kColumns                    Both tiles lie there as [k][row or column]. A thread's 8 rows are two groups
//        +---+---+---+---+               of 4, 64 apart, and so its columns, kColumns / 2 apart; a warp's 32 threads
//   128  | w |   |   |   |   w: 32 x 64  are 4 x 8 of them.
//        +---+---+---+---+
//
// Operands whose stored rows run along K are transposed on the way. Then neighbouring threads write columns 4k .. 4k+3
// of neighbouring rows; the row index is permuted by k / 4, so that these lie in different banks.
#include <algorithm>

#include "runtime/cuda/kernels/cuda_float_product.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

constexpr int kRows = kCausalTile, kDepth = 16;

struct ProductShape {
  int depth = 0;  // K
  int row_tiles = 0, column_tiles = 0, inner = 1;
  ProductPart part = ProductPart::kWhole;
  bool add = false, whole_vectors = false;  // of C
};

__device__ int64_t offset_of(const ProductSteps& steps, int64_t outer, int64_t inner) {
  return outer * steps.outer + inner / steps.inner_group * steps.inner;
}

// One matrix of a batch.
struct Stored {
  const float* data;
  int64_t stride;
  int rows, columns;

  __device__ Stored(const ProductInput& m, int64_t outer, int64_t inner)
      : data(m.data + offset_of(m.steps, outer, inner)),
        stride(m.stride),
        rows(static_cast<int>(m.rows)),
        columns(static_cast<int>(m.columns)) {}

  // Four consecutive elements of a row; what does not exist is zero. kVector: rows begin at multiples of 16 bytes and
  // have a multiple of four columns.
  template <bool kVector>
  __device__ float4 load4(int row, int column) const {
    float4 v{0, 0, 0, 0};
    if (row >= rows || column >= columns) return v;
    const float* at = data + row * stride + column;
    if constexpr (kVector) return *reinterpret_cast<const float4*>(at);
    v.x = at[0];
    if (column + 1 < columns) v.y = at[1];
    if (column + 2 < columns) v.z = at[2];
    if (column + 3 < columns) v.w = at[3];
    return v;
  }
};

__device__ int permuted(int k, int index) { return index ^ (k / 4 % 4 * 8); }

// Moves tiles of kSide rows (or columns) of C by kDepth of K from one operand to shared memory.
template <int kSide, int kThreads, bool kAlongDepth, bool kVector>
class TileLoader {
 public:
  __device__ TileLoader(const Stored& matrix, int first) : matrix_(matrix), first_(first) {}

  __device__ void load(int k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      auto [side, depth] = place(i);
      loaded_[i] = kAlongDepth ? matrix_.template load4<kVector>(first_ + side, k + depth)
                               : matrix_.template load4<kVector>(k + depth, first_ + side);
    }
  }
  __device__ void store(float (&tile)[kDepth][kSide]) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      auto [side, depth] = place(i);
      if constexpr (kAlongDepth) {
        int at = permuted(depth, side);  // the same for depth .. depth + 3
        tile[depth][at] = loaded_[i].x;
        tile[depth + 1][at] = loaded_[i].y;
        tile[depth + 2][at] = loaded_[i].z;
        tile[depth + 3][at] = loaded_[i].w;
      } else {
        *reinterpret_cast<float4*>(&tile[depth][permuted(depth, side)]) = loaded_[i];
      }
    }
  }

 private:
  static constexpr int kLoads = kSide * kDepth / 4 / kThreads;

  struct Place {
    int side, depth;
  };
  __device__ static Place place(int i) {
    int index = i * kThreads + static_cast<int>(threadIdx.x);
    if constexpr (kAlongDepth)
      return {index / (kDepth / 4), index % (kDepth / 4) * 4};
    else
      return {index % (kSide / 4) * 4, index / (kSide / 4)};
  }

  Stored matrix_;
  int first_;
  float4 loaded_[kLoads];
};

__device__ void unpack4(const float* from, float* to) {
  float4 v = *reinterpret_cast<const float4*>(from);
  to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
}

template <int kColumns>
__device__ void multiply_tiles(const float (&a)[kDepth][kRows], const float (&b)[kDepth][kColumns], int row, int column,
                               float (&sums)[8][8]) {
#pragma unroll
  for (int k = 0; k < kDepth; ++k) {
    float left[8], right[8];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      unpack4(&a[k][permuted(k, row + half * kRows / 2)], left + 4 * half);
      unpack4(&b[k][permuted(k, column + half * kColumns / 2)], right + 4 * half);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(left[i], right[j], sums[i][j]);
  }
}

// sums[i][4 * half ...] to four consecutive elements of C.
__device__ void store4(const float* sums, const ProductOutput& c, float* matrix, int64_t row, int64_t column,
                       const ProductShape& shape) {
  if (row >= c.rows || column >= c.columns) return;
  float* at = matrix + row * c.stride + column;
  if (shape.whole_vectors) {
    float4 v{sums[0], sums[1], sums[2], sums[3]};
    if (shape.add) {
      float4 old = *reinterpret_cast<float4*>(at);
      v = {old.x + v.x, old.y + v.y, old.z + v.z, old.w + v.w};
    }
    *reinterpret_cast<float4*>(at) = v;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j)
    if (column + j < c.columns) at[j] = shape.add ? at[j] + sums[j] : sums[j];
}

// Threads that a tile of kColumns columns takes.
template <int kColumns>
constexpr int kThreadsOf = kRows* kColumns / 64;

template <ProductForm kForm, int kColumns, bool kVector>
__global__ void __launch_bounds__(kThreadsOf<kColumns>, kColumns == 64 ? 3 : 2)
    product_kernel(const __grid_constant__ ProductInput a, const __grid_constant__ ProductInput b,
                   const __grid_constant__ ProductOutput c, const __grid_constant__ ProductShape shape) {
  constexpr int kThreads = kThreadsOf<kColumns>;
  __shared__ __align__(16) float a_tiles[2][kDepth][kRows];
  __shared__ __align__(16) float b_tiles[2][kDepth][kColumns];
  int index = static_cast<int>(blockIdx.x);
  int first_column = index % shape.column_tiles * kColumns;
  index /= shape.column_tiles;
  int first_row = index % shape.row_tiles * kRows;
  index /= shape.row_tiles;
  int64_t outer = index / shape.inner, inner = index % shape.inner;
  if (shape.part == ProductPart::kLowerTiles && first_column >= first_row + kRows) return;
  int begin = shape.part == ProductPart::kDepthFromRow ? first_row : 0;
  int end = shape.part == ProductPart::kDepthToRow ? min(shape.depth, first_row + kRows) : shape.depth;

  TileLoader<kRows, kThreads, kForm != ProductForm::kTN, kVector> load_a(Stored(a, outer, inner), first_row);
  TileLoader<kColumns, kThreads, kForm == ProductForm::kNT, kVector> load_b(Stored(b, outer, inner), first_column);
  int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int row = (warp / (kColumns / 64) * 4 + lane / 8) * 4, column = (warp % (kColumns / 64) * 8 + lane % 8) * 4;
  float sums[8][8] = {};
  load_a.load(begin);
  load_b.load(begin);
  int stage = 0;
  for (int k = begin; k < end; k += kDepth, stage ^= 1) {
    load_a.store(a_tiles[stage]);
    load_b.store(b_tiles[stage]);
    __syncthreads();  // the tiles are there for all; and all have left the other stage, which is stored next
    if (k + kDepth < end) {
      load_a.load(k + kDepth);
      load_b.load(k + kDepth);
    }
    multiply_tiles<kColumns>(a_tiles[stage], b_tiles[stage], row, column, sums);
  }
  float* matrix = c.data + offset_of(c.steps, outer, inner);
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half)
      store4(sums[i] + 4 * half, c, matrix, first_row + row + i % 4 + i / 4 * (kRows / 2),
             first_column + column + half * (kColumns / 2), shape);
}

template <typename Operand>
bool has_whole_vectors(const Operand& m) {
  return reinterpret_cast<uintptr_t>(m.data) % 16 == 0 && m.stride % 4 == 0 && m.columns % 4 == 0 &&
         m.steps.outer % 4 == 0 && m.steps.inner % 4 == 0;
}

template <ProductForm kForm, int kColumns>
void launch(const ProductInput& a, const ProductInput& b, const ProductOutput& c, ProductShape shape, int64_t products,
            cudaStream_t stream) {
  shape.row_tiles = divide_up(c.rows, kRows);
  shape.column_tiles = divide_up(c.columns, kColumns);
  int64_t tiles = int64_t{shape.row_tiles} * shape.column_tiles * products;
  if (tiles > INT32_MAX) throw DeviceError("CUDA: a product of " + std::to_string(tiles) + " tiles, at most 2^31 - 1");
  auto kernel = has_whole_vectors(a) && has_whole_vectors(b) ? product_kernel<kForm, kColumns, true>
                                                             : product_kernel<kForm, kColumns, false>;
  launch_kernel(kernel, {dim3(static_cast<unsigned>(tiles)), kThreadsOf<kColumns>}, stream, a, b, c, shape);
}

template <ProductForm kForm>
void launch_form(const ProductInput& a, const ProductInput& b, const ProductOutput& c, const ProductShape& shape,
                 int64_t products, cudaStream_t stream) {
  if (c.columns <= 64)
    launch<kForm, 64>(a, b, c, shape, products, stream);
  else
    launch<kForm, 128>(a, b, c, shape, products, stream);
}

}  // namespace

void launch_product(ProductForm form, const ProductInput& a, const ProductInput& b, const ProductOutput& c, bool add,
                    ProductBatch batch, ProductPart part, cudaStream_t stream) {
  int64_t products = batch.outer * batch.inner;
  if (c.rows == 0 || c.columns == 0 || products == 0) return;
  ProductShape shape{
      .inner = static_cast<int>(batch.inner), .part = part, .add = add, .whole_vectors = has_whole_vectors(c)};
  switch (form) {
    case ProductForm::kNT:
      shape.depth = static_cast<int>(std::max(a.columns, b.columns));
      return launch_form<ProductForm::kNT>(a, b, c, shape, products, stream);
    case ProductForm::kNN:
      shape.depth = static_cast<int>(std::max(a.columns, b.rows));
      return launch_form<ProductForm::kNN>(a, b, c, shape, products, stream);
    case ProductForm::kTN:
      shape.depth = static_cast<int>(std::max(a.rows, b.rows));
      return launch_form<ProductForm::kTN>(a, b, c, shape, products, stream);
  }
}

}  // namespace thimble
