// cuda_product_tiles.cuh: what the kernels of cuda_float_product.cuh have in common. One CTA computes a tile of
// kCausalTile x kColumns of C. It walks along K in steps of which one lies in shared memory while the next is on its
// way through registers. How tiles lie in shared memory and are multiplied is the kernel's own:
//
//   struct Tiles {
//     static constexpr ProductForm kForm; static constexpr int kColumns, kDepth, kThreads, kCtas;  // on a
//     multiprocessor struct Stage;                                       // in shared memory: a step's tiles of A and B
//     Tiles(const StoredFactor<T>& a, const StoredFactor<T>& b, int first_row, int first_column);
//     void load(int k); void store(Stage&) const;         // from device memory to registers; from there to the stage
//     void multiply(const Stage&);
//     template <typename C>
//     void write(const BasicProductOutput<C>& c, C* matrix, const ProductShape& shape) const;
//   };
#pragma once

#include <string>

#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/cuda/kernels/products/cuda_float_product.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {

struct ProductShape {
  int depth = 0;  // K
  int row_tiles = 0, column_tiles = 0, inner = 1;
  ProductPart part = ProductPart::kWhole;
  bool add = false, whole_vectors = false;  // of C
  bool whole_chunks = false;                // of C in bf16: 16 bytes begin at multiples of as many
};

__device__ inline int64_t offset_of(const ProductSteps& steps, int64_t outer, int64_t inner) {
  return outer * steps.outer + inner / steps.inner_group * steps.inner;
}

// One matrix of a batch.
template <typename T>
struct StoredFactor {
  const T* data;
  int64_t stride;
  int rows, columns;

  __device__ StoredFactor(const BasicProductInput<T>& m, int64_t outer, int64_t inner)
      : data(m.data + offset_of(m.steps, outer, inner)),
        stride(m.stride),
        rows(static_cast<int>(m.rows)),
        columns(static_cast<int>(m.columns)) {}

  // Four consecutive elements of a row; what does not exist is zero. kVector: rows begin at multiples of four elements
  // and have a multiple of four columns.
  template <bool kVector>
  __device__ float4 load4(int row, int column) const {
    float4 v{0, 0, 0, 0};
    if (row >= rows || column >= columns) return v;
    const T* at = data + row * stride + column;
    if constexpr (kVector && std::is_same_v<T, float>) {
      return *reinterpret_cast<const float4*>(at);
    } else if constexpr (kVector) {
      const float2 low = load_pair(at), high = load_pair(at + 2);
      return {low.x, low.y, high.x, high.y};
    }
    v.x = to_float(at[0]);
    if (column + 1 < columns) v.y = to_float(at[1]);
    if (column + 2 < columns) v.z = to_float(at[2]);
    if (column + 3 < columns) v.w = to_float(at[3]);
    return v;
  }
};

// On the way to shared memory: a tile of kSide rows (or columns) of C by kDepth of K of one factor, whose stored rows
// run along K (kAlongDepth) or across it. Moved four elements at a time.
template <typename T, int kSide, int kDepth, int kThreads, bool kAlongDepth, bool kVector>
class TileLoader {
 public:
  __device__ TileLoader(const StoredFactor<T>& factor, int first) : factor_(factor), first_(first) {}

  __device__ void load(int k) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      auto [side, depth] = place(i);
      loaded_[i] = kAlongDepth ? factor_.template load4<kVector>(first_ + side, k + depth)
                               : factor_.template load4<kVector>(k + depth, first_ + side);
    }
  }
  // put(side, depth, values): at depth .. depth + 3 of one side, or of side .. side + 3.
  template <typename Put>
  __device__ void store(const Put& put) const {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      auto [side, depth] = place(i);
      put(side, depth, loaded_[i]);
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

  StoredFactor<T> factor_;
  int first_;
  float4 loaded_[kLoads];
};

// kCount consecutive elements to C, 2 or 4.
template <int kCount, typename C>
__device__ void write_sums(const float* sums, const BasicProductOutput<C>& c, C* matrix, int64_t row, int64_t column,
                           const ProductShape& shape) {
  if (row >= c.rows || column >= c.columns) return;
  C* at = matrix + row * c.stride + column;
  if (shape.whole_vectors) {
    if constexpr (kCount == 4 && std::is_same_v<C, float>) {
      float4 vector = shape.add ? *reinterpret_cast<float4*>(at) : float4{0, 0, 0, 0};
      vector.x += sums[0], vector.y += sums[1], vector.z += sums[2], vector.w += sums[3];
      *reinterpret_cast<float4*>(at) = vector;
    } else {
#pragma unroll
      for (int j = 0; j < kCount; j += 2) {
        float2 pair = shape.add ? load_pair(at + j) : float2{0, 0};
        pair.x += sums[j], pair.y += sums[j + 1];
        store_pair(at + j, pair);
      }
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < kCount; ++j)
    if (column + j < c.columns) at[j] = from_float<C>(shape.add ? to_float(at[j]) + sums[j] : sums[j]);
}

template <typename Tiles, typename T, typename C>
__global__ void __launch_bounds__(Tiles::kThreads, Tiles::kCtas)
    product_kernel(const __grid_constant__ BasicProductInput<T> a, const __grid_constant__ BasicProductInput<T> b,
                   const __grid_constant__ BasicProductOutput<C> c, const __grid_constant__ ProductShape shape) {
  __shared__ __align__(16) typename Tiles::Stage stages[2];
  int index = static_cast<int>(blockIdx.x);
  const int first_column = index % shape.column_tiles * Tiles::kColumns;
  index /= shape.column_tiles;
  const int first_row = index % shape.row_tiles * kCausalTile;
  index /= shape.row_tiles;
  const int64_t outer = index / shape.inner, inner = index % shape.inner;
  if (shape.part == ProductPart::kLowerTiles && first_column >= first_row + kCausalTile) return;
  const int begin = shape.part == ProductPart::kDepthFromRow ? first_row : 0;
  const int end = shape.part == ProductPart::kDepthToRow ? min(shape.depth, first_row + kCausalTile) : shape.depth;

  Tiles tiles(StoredFactor<T>(a, outer, inner), StoredFactor<T>(b, outer, inner), first_row, first_column);
  tiles.load(begin);
  int stage = 0;
  for (int k = begin; k < end; k += Tiles::kDepth, stage ^= 1) {
    tiles.store(stages[stage]);
    __syncthreads();  // the tiles are there for all; and all have left the other stage, which is stored next
    if (k + Tiles::kDepth < end) tiles.load(k + Tiles::kDepth);
    tiles.multiply(stages[stage]);
  }
  tiles.write(c, c.data + offset_of(c.steps, outer, inner), shape);
}

template <typename Operand>
bool has_whole_vectors(const Operand& m) {
  return reinterpret_cast<uintptr_t>(m.data) % (4 * sizeof(*m.data)) == 0 && m.stride % 4 == 0 && m.columns % 4 == 0 &&
         m.steps.outer % 4 == 0 && m.steps.inner % 4 == 0;
}

// Tiles<T, form, columns, has_vectors>
template <template <typename, ProductForm, int, bool> typename Tiles, typename T, typename C>
class ProductLauncher {
 public:
  ProductLauncher(const BasicProductInput<T>& a, const BasicProductInput<T>& b, const BasicProductOutput<C>& c,
                  const ProductOptions& options, cudaStream_t stream)
      : a_(a), b_(b), c_(c), options_(options), stream_(stream) {}

  void launch(ProductForm form) const {
    switch (form) {
      case ProductForm::kNT: return launch<ProductForm::kNT>(std::max(a_.columns, b_.columns));
      case ProductForm::kNN: return launch<ProductForm::kNN>(std::max(a_.columns, b_.rows));
      case ProductForm::kTN: return launch<ProductForm::kTN>(std::max(a_.rows, b_.rows));
    }
  }

 private:
  template <ProductForm kForm>
  void launch(int64_t depth) const {
    if (c_.columns <= 64)
      launch<kForm, 64>(depth);
    else
      launch<kForm, 128>(depth);
  }
  template <ProductForm kForm, int kColumns>
  void launch(int64_t depth) const {
    if (has_whole_vectors(a_) && has_whole_vectors(b_))
      launch<Tiles<T, kForm, kColumns, true>>(depth);
    else
      launch<Tiles<T, kForm, kColumns, false>>(depth);
  }
  template <typename Kind>
  void launch(int64_t depth) const {
    const ProductShape shape{.depth = static_cast<int>(depth),
                             .row_tiles = divide_up(c_.rows, kCausalTile),
                             .column_tiles = divide_up(c_.columns, Kind::kColumns),
                             .inner = static_cast<int>(options_.batch.inner),
                             .part = options_.part,
                             .add = options_.add,
                             .whole_vectors = has_whole_vectors(c_)};
    const int64_t tiles = int64_t{shape.row_tiles} * shape.column_tiles * options_.batch.outer * options_.batch.inner;
    if (tiles > INT32_MAX)
      throw DeviceError("CUDA: a product of " + std::to_string(tiles) + " tiles, at most 2^31 - 1");
    launch_kernel(product_kernel<Kind, T, C>, {dim3(static_cast<unsigned>(tiles)), Kind::kThreads}, stream_, a_, b_, c_,
                  shape);
  }

  const BasicProductInput<T>&a_, &b_;
  const BasicProductOutput<C>& c_;
  const ProductOptions& options_;
  cudaStream_t stream_;
};

// launch_product() of products that are not empty, in bf16.
void launch_bf16_product(ProductForm form, const ProductInput& a, const ProductInput& b, const ProductOutput& c,
                         const ProductOptions& options, cudaStream_t stream);

}  // namespace thimble
