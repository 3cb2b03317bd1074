// packed_products.h: products of many rows, for whom the other factor is put once into the order in which Eigen's
// kernel reads it: by itself, Eigen does that again for every tile of the product. Only for files that include
// kernel_rows.h.
#pragma once

namespace thimble {
namespace {

// A block of the factor, or with kIsTransposed what is one after it has been transposed. Elements of other types are
// widened first: so there is one copy of Eigen's code for all types.
template <bool kIsTransposed>
void pack_block(const StoredMatrixView& block, float* packed) {
  using Mapper = WideningMapper<FloatElements, kIsTransposed>;
  using Index = Eigen::Index;
  using Traits = Eigen::internal::gebp_traits<float, float>;
  constexpr int kOrder = kIsTransposed ? Eigen::ColMajor : Eigen::RowMajor;
  Eigen::internal::gemm_pack_lhs<float, Index, Mapper, Traits::mr, Traits::LhsProgress, Traits::LhsPacket4Packing,
                                 kOrder>
      pack;
  const FloatValues values(block);
  const Index rows = kIsTransposed ? block.cols : block.rows, depth = kIsTransposed ? block.rows : block.cols;
  pack(packed, Mapper(FloatElements(values.view())), depth, rows);
}

// c (M, N) = a B^T, or c += it, in the columns of B's blocks of rows [first, last): as Eigen does it, of the
// transposes. kOrder: of a^T (K, M) as it lies in memory; `a` begins where it does, rows or columns `stride` apart.
template <int kOrder>
void add_packed_product(const float* a, int64_t stride, const PackedBlocks& blocks, const float* packed, int64_t first,
                        int64_t last, MatrixView c, bool adds) {
  using Index = Eigen::Index;
  namespace internal = Eigen::internal;
  using Traits = internal::gebp_traits<float, float>;
  using RightMapper = internal::const_blas_data_mapper<float, Index, kOrder>;
  using ResultMapper = internal::blas_data_mapper<float, Index, Eigen::ColMajor, Eigen::Unaligned, 1>;
  internal::gemm_pack_rhs<float, Index, RightMapper, Traits::nr, kOrder> pack_right;
  internal::gebp_kernel<float, float, Index, ResultMapper, Traits::mr, Traits::nr, false, false> multiply;
  const RightMapper right(a, stride);
  const ResultMapper result(c.data, c.stride);
  Eigen::Matrix<float, Eigen::Dynamic, 1> rows_of_a(c.rows * PackedBlocks::kBlockColumns);
  for (int64_t k = 0; k < blocks.column_blocks(); ++k) {
    const int64_t depth = blocks.columns_of(k);
    pack_right(rows_of_a.data(), right.getSubMapper(blocks.first_column(k), 0), depth, c.rows);
    for (int64_t i = first; i < last; ++i) {
      const int64_t n = blocks.first_row(i), rows = blocks.rows_of(i);
      if (k == 0 && !adds) map(c.block_cols(n, rows)).setZero();
      multiply(result.getSubMapper(n, 0), packed + blocks.offset(i, k), rows_of_a.data(), rows, depth, c.rows, 1.0f);
    }
  }
}

}  // namespace
}  // namespace thimble
