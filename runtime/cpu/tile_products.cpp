// tile_products.cpp: see tile_products.h.
#include "runtime/cpu/tile_products.h"

#include "runtime/cpu/bf16_products.h"

namespace thimble {
namespace {

// B in the order that the kernels read, until the calling thread's next product.
float* packed(const StoredMatrixView& b, const PackedBlocks& blocks, decltype(Bf16Products::pack) pack) {
  thread_local AlignedVector<float> room;
  const auto floats = static_cast<size_t>((blocks.count() + 1) / 2);
  if (room.size() < floats) room.resize(floats);
  for (int64_t i = 0; i < blocks.row_blocks(); ++i)
    for (int64_t k = 0; k < blocks.column_blocks(); ++k) pack(b, blocks, i, k, room.data());
  return room.data();
}

void multiply_nt(ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  const PackedBlocks blocks = bf16_blocks(b.rows, b.cols);
  bf16_products()->multiply_packed(a, blocks, packed(b, blocks, bf16_products()->pack), 0, blocks.row_blocks(), c,
                                   /*adds=*/false);
}

void multiply_nn(ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  const PackedBlocks blocks = bf16_blocks(b.cols, b.rows);
  bf16_products()->multiply_packed(a, blocks, packed(b, blocks, bf16_products()->pack_transposed), 0,
                                   blocks.row_blocks(), c, /*adds=*/false);
}

void add_tn(ConstMatrixView a_transposed, ConstMatrixView b, MatrixView c) {
  const PackedBlocks blocks = bf16_blocks(b.cols, b.rows);
  bf16_products()->multiply_packed_tn(a_transposed, blocks, packed(b, blocks, bf16_products()->pack_transposed), 0,
                                      blocks.row_blocks(), c);
}

constexpr TileProducts kBf16{multiply_nt, multiply_nn, add_tn};

}  // namespace

const TileProducts* tile_products(ProductArithmetic arithmetic) {
  return arithmetic == ProductArithmetic::kBf16 && bf16_products() ? &kBf16 : nullptr;
}

}  // namespace thimble
