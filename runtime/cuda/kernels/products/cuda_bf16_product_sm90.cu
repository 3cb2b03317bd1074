// cuda_bf16_product_sm90.cu: see cuda_bf16_product_sm90.cuh; cuda_tile_product_sm90.cuh with C in memory.
#include "runtime/cuda/kernels/products/cuda_bf16_product_sm90.cuh"

#include "runtime/cuda/kernels/cuda_row_vectors.cuh"
#include "runtime/cuda/kernels/products/cuda_chunks_sm90.cuh"
#include "runtime/cuda/kernels/products/cuda_product_tiles.cuh"

namespace thimble {
namespace {

constexpr int kRows = tile_product_sm90::kRows, kColumns = tile_product_sm90::kColumns;

template <typename C>
struct StoreSums {
  BasicProductOutput<C> c;
  ProductShape shape;

  __device__ void operator()(FragmentValues<kColumns>& sums, const ProductTile& at) const {
    C* to = c.data + at.matrix * c.steps.outer;
    if constexpr (std::is_same_v<C, __nv_bfloat16>)
      if (shape.whole_chunks)
        return for_each_chunk<kColumns>(sums, at, [&](const ChunkSums& chunk, int) {
          C* place = to + chunk.at.row * c.stride + chunk.at.column;
          const bool exists = chunk.at.row < c.rows && chunk.at.column < c.columns;
          if (!shape.add) {
            const auto rounded = chunk.rounded();
            if (exists) rounded.store(place);
            return;
          }
          float added[8], before[8];
          chunk.unpack(added);
          if (!exists) return;
          Stored8<C>::load(place).unpack(before);
#pragma unroll
          for (int i = 0; i < 8; ++i) before[i] += added[i];
          Stored8<C>::rounded(before).store(place);
        });
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        write_sums<2>(sums[j] + 2 * half, c, to, at.row + 8 * half,
                      at.first_column + 8 * j + static_cast<int>(threadIdx.x) % 4 * 2, shape);
  }
};

template <bool kAlongA, bool kAlongB, typename C>
void launch_product_sm90(const Bf16Factor& a, const Bf16Factor& b, const BasicProductOutput<C>& c,
                         const ProductShape& shape, int64_t batch, cudaStream_t stream) {
  auto map = [&](const Bf16Factor& factor, bool runs_along_depth) {
    return factor_map_sm90(factor.data, factor.rows, factor.columns, factor.stride, runs_along_depth, batch,
                           factor.steps.outer);
  };
  launch_tile_product_sm90<__nv_bfloat16, kAlongA, kAlongB>(map(a, kAlongA), map(b, kAlongB),
                                                            {shape.depth, shape.row_tiles, shape.column_tiles}, batch,
                                                            StoreSums<C>{c, shape}, stream);
}

}  // namespace

bool is_sm90_factor(const Bf16Factor& factor, int64_t batch) {
  return reinterpret_cast<uintptr_t>(factor.data) % 16 == 0 && factor.stride % 8 == 0 &&
         (batch == 1 || factor.steps.outer % 8 == 0);
}

template <typename C>
void launch_bf16_product_sm90(ProductForm form, const Bf16Factor& a, const Bf16Factor& b,
                              const BasicProductOutput<C>& c, bool add, int64_t batch, cudaStream_t stream) {
  if (c.rows == 0 || c.columns == 0 || batch == 0) return;
  const bool has_pairs = reinterpret_cast<uintptr_t>(c.data) % (2 * sizeof(C)) == 0 && c.stride % 2 == 0 &&
                         c.columns % 2 == 0 && c.steps.outer % 2 == 0;
  ProductShape shape{.row_tiles = divide_up(c.rows, kRows),
                     .column_tiles = divide_up(c.columns, kColumns),
                     .add = add,
                     .whole_vectors = has_pairs,
                     .whole_chunks = has_row_vectors(c) && c.steps.outer % 8 == 0};
  switch (form) {
    case ProductForm::kNT:
      shape.depth = static_cast<int>(a.columns);
      return launch_product_sm90<true, true>(a, b, c, shape, batch, stream);
    case ProductForm::kNN:
      shape.depth = static_cast<int>(a.columns);
      return launch_product_sm90<true, false>(a, b, c, shape, batch, stream);
    case ProductForm::kTN:
      shape.depth = static_cast<int>(a.rows);
      return launch_product_sm90<false, false>(a, b, c, shape, batch, stream);
  }
}

template void launch_bf16_product_sm90(ProductForm, const Bf16Factor&, const Bf16Factor&,
                                       const BasicProductOutput<float>&, bool, int64_t, cudaStream_t);
template void launch_bf16_product_sm90(ProductForm, const Bf16Factor&, const Bf16Factor&,
                                       const BasicProductOutput<__nv_bfloat16>&, bool, int64_t, cudaStream_t);

}  // namespace thimble
