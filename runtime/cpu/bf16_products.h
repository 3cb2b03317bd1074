// bf16_products.h: the kernels of products of many rows whose factors are rounded to bf16, for processors that multiply
// pairs of bf16 (AVX512-BF16, AMX-BF16). Internal to runtime/. Every kernel runs on the calling thread. Numbers below
// 2^-126 count as zero.
#pragma once

#include "runtime/cpu/cpu_kernels.h"

namespace thimble {

// Rows of a packed factor that lie together, pair of columns by pair of columns.
constexpr int64_t kBf16Panel = 48;

// How such a factor lies in memory; elements take two bytes.
constexpr PackedBlocks bf16_blocks(int64_t rows, int64_t columns) { return {rows, columns, kBf16Panel, 2}; }

// As CpuKernels' and CpuGradientKernels' of the same names.
struct Bf16Products {
  const char* name;
  void (*pack)(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed);
  void (*pack_transposed)(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed);
  void (*multiply_packed)(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first,
                          int64_t last, MatrixView c, bool adds);
  void (*multiply_packed_tn)(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first,
                             int64_t last, MatrixView c);
};

// Null where the processor has no such instructions, or THIMBLE_ISA names a set without them.
#ifdef THIMBLE_X86_KERNELS
const Bf16Products* bf16_products();
#else
constexpr const Bf16Products* bf16_products() { return nullptr; }
#endif

const Bf16Products& bf16_products_avx512();
// Only where the system lets this process use tiles (kernel_choice.cpp asks for it).
const Bf16Products& bf16_products_amx();

}  // namespace thimble
