// nvfp4_matrix.h: a matrix in NVFP4: two codes to a byte, a scale to 16 of them, a scale for all.
// In: float32 matrices.  Out: Nvfp4Codes, their values, and the product of two of them.
// R, M, N = rows, K = columns, B = ceil(K / 16) blocks of a row
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/codes/nvfp4.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// value(r, k) = float32((e2m1(r, k) * ue4m3(r, k / 16)) * tensor_scale); the inner product is exact.
struct Nvfp4Codes {
  std::vector<uint8_t> codes;         // (R, ceil(K / 2)) column 2 i in the low nibble of byte i; an unused nibble is 0
  std::vector<uint8_t> block_scales;  // (R, B) UE4M3, at most kUe4m3MaxCode
  float tensor_scale = 1;             // finite, > 0, and the largest value is finite too
  bool operator==(const Nvfp4Codes&) const = default;
};

// Room for `rows` x `columns`: all codes and scales 0.
Nvfp4Codes nvfp4_zeros(int64_t rows, int64_t columns);

inline uint8_t nvfp4_code(const Nvfp4Codes& coded, int64_t row_bytes, int64_t r, int64_t k) {
  return static_cast<uint8_t>((coded.codes[static_cast<size_t>(r * row_bytes + k / 2)] >> (k % 2 * 4)) & 0xf);
}
// The code there must be 0.
inline void set_nvfp4_code(Nvfp4Codes& coded, int64_t row_bytes, int64_t r, int64_t k, uint8_t code) {
  uint8_t& byte = coded.codes[static_cast<size_t>(r * row_bytes + k / 2)];
  byte = static_cast<uint8_t>(byte | (code << (k % 2 * 4)));
}

// The tensor scale that makes the block of the largest value reach 448.
float nvfp4_tensor_scale(ConstMatrixView values);

// The values staged (nvfp4.h) with one tensor scale for all. They must be finite.
Nvfp4Codes stage_nvfp4(ConstMatrixView values);

// (R, K) as above.
Matrix dequantize_nvfp4(const Nvfp4Codes& coded, int64_t rows, int64_t columns);

// C (M, N) = A (M, K) B^T with B (N, K), as tensor cores do it: products and sums within a block are exact, each block
// is multiplied by the scales of both, blocks are added in float32 in ascending order, and the tensor scales come last.
Matrix multiply_nvfp4(const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k);

}  // namespace thimble
