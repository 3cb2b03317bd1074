// cpu_kernels.cpp: the kernels of cpu_kernels.h, compiled once per instruction set (kernel_rows.h).
#include "runtime/cpu/cpu_kernels.h"

#include "runtime/cpu/few_queries.h"
#include "runtime/cpu/kernel_rows.h"
#include "runtime/cpu/packed_products.h"

namespace thimble {
namespace {

void gemm_nt(ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  if (b.is_float32()) return assign_product(a, map(b.float32()).transpose(), c, false);
  if (is_special(a, c)) return assign_product(a, map(WidenedMatrix(b, b.cols).view()).transpose(), c, false);
  if (a.rows == 1)
    return for_each_widened_part(b, kVectorRows, b.stride, [&](int64_t first, const WidenedMatrix& part) {
      const ConstMatrixView m = part.view();
      assign_product(a, map(m).transpose(), c.block_cols(first, m.rows), false);
    });
  map(c).setZero();
  with_elements(b, [&](const auto& elements) { add_widened_product<false>(a, elements, c); });
}

void pack(const StoredMatrixView& b, const PackedBlocks& blocks, int64_t i, int64_t k, float* packed) {
  pack_block<false>(
      b.block_rows(blocks.first_row(i), blocks.rows_of(i)).block_cols(blocks.first_column(k), blocks.columns_of(k)),
      packed + blocks.offset(i, k));
}

void multiply_packed(ConstMatrixView a, const PackedBlocks& blocks, const float* packed, int64_t first, int64_t last,
                     MatrixView c, bool adds) {
  add_packed_product<Eigen::ColMajor>(a.data, a.stride, blocks, packed, first, last, c, adds);
}

void add_scaled(const float* a, float scale, float* x, int64_t n) { Row(x, n) += scale * ConstRow(a, n); }

void add(const float* a, const float* scale, float* x, int64_t n) { Row(x, n) += ConstRow(scale, n) * ConstRow(a, n); }

void rms_norm(const float* x, const float* gain, float factor, float epsilon, float* y, int64_t n) {
  Row(y, n) = ConstRow(x, n) * (inverse_rms(x, epsilon, n) * factor);
  if (gain) Row(y, n) *= ConstRow(gain, n);
}

// In two passes: the differences from the mean stay small whatever the mean is. Eigen sums a plain array in an order
// that follows from its address, a product by its elements alone; the same row must give the same bits wherever it
// lies.
void layer_norm(const float* x, const float* weight, const float* bias, float epsilon, float* y, int64_t n) {
  const auto width = static_cast<float>(n);
  Row out(y, n);
  out = ConstRow(x, n) - (1.0f * ConstRow(x, n)).sum() / width;
  const float inverse = 1.0f / __builtin_sqrtf(out.square().sum() / width + epsilon);
  out = out * inverse * ConstRow(weight, n) + ConstRow(bias, n);
}

void mix(const float* x, const float* a, const float* first, const float* second, float* y, int64_t n) {
  Row(y, n) = ConstRow(first, n) * ConstRow(x, n) + ConstRow(second, n) * ConstRow(a, n);
}

void multiply(const float* x, const float* a, float* y, int64_t n) { Row(y, n) = ConstRow(x, n) * ConstRow(a, n); }

// The rotation's inverse is its transpose.
void rotate(float* x, const float* cosine, const float* sine, int64_t half, float turn) {
  for (int64_t k = 0; k < half; ++k) {
    const float first = x[k], second = x[half + k], s = turn * sine[k];
    x[k] = first * cosine[k] + second * s;
    x[half + k] = second * cosine[k] - first * s;
  }
}

void smear(const float* x, const float* before, const float* gate, float* out, int64_t n) {
  ConstRow g(gate, n);
  Row(out, n) = (1.0f - g) * ConstRow(x, n) + g * ConstRow(before, n);
}

void gated_skip(const float* skip, const float* weight, const float* gate, float* x, int64_t n) {
  ConstRow g(gate, n);
  Row row(x, n);
  row = (1.0f - g) * (ConstRow(weight, n) * ConstRow(skip, n)) + g * row;
}

void activate(Activation activation, float* z, int64_t n) {
  Row row(z, n);
  switch (activation) {
    case Activation::kLeakyReluSquared: row = row.max(0.5f * row).square(); break;
    case Activation::kGeluTanh:
      // As z / (1 + exp(-2u)), which is z / 2 * (1 + tanh u) without the cancellation at large negative u.
      row = row / (1.0f + (-kTwoSqrtTwoOverPi * (row + 0.044715f * row.cube())).exp());
      break;
    case Activation::kSilu: row = row / (1.0f + (-row).exp()); break;
  }
}

void softcap(float cap, float* x, int64_t n) {
  Row row(x, n);
  row = cap * (row * (1.0f / cap)).tanh();
}

// As bf16_from_float() does it.
void round_to_bf16(float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const auto bits = bits_as<uint32_t>(x[i]);
    const uint32_t rounded = bits + 0x7fffu + ((bits >> 16) & 1u), quiet = bits | 0x400000u;
    x[i] = bits_as<float>(((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) & 0xffff0000u);
  }
}

// y -= (y . vhat) vhat with vhat = v / max(|v|, 1e-12), the own position's value.
void remove_own_value(const float* v, float* y, int64_t d) {
  ConstRow value(v, d);
  Row out(y, d);
  float norm = __builtin_sqrtf(value.square().sum());
  float inverse = 1.0f / (norm > kMinValueNorm ? norm : kMinValueNorm);
  float along = (out * value).sum() * inverse;
  out -= (along * inverse) * value;
}

void attention(const AttentionTile& t, float* y, int64_t y_stride, const AttentionRoundings& roundings) {
  if (t.rows <= kFewQueries) {
    for (int64_t i = 0; i < t.rows; ++i) attend_one_row(t, i, y + i * y_stride, roundings);
  } else {
    tile_nn(t, attention_weights(t, roundings), t.v, {y, t.rows, t.head_dim, y_stride});
  }
  if (!t.exclusive) return;
  for (int64_t i = 0; i < t.rows; ++i) {
    const FloatValues own(t.v.block_rows(t.first_position + i, 1));
    for (int64_t h = 0; h < t.heads; ++h)
      remove_own_value(own.view().data, y + i * y_stride + h * t.head_dim, t.head_dim);
  }
}

constexpr CpuKernels kKernels = {THIMBLE_STRING(THIMBLE_ISA),
                                 gemm_nt,
                                 pack,
                                 multiply_packed,
                                 add_scaled,
                                 add,
                                 rms_norm,
                                 layer_norm,
                                 smear,
                                 gated_skip,
                                 mix,
                                 multiply,
                                 rotate,
                                 activate,
                                 softcap,
                                 round_to_bf16,
                                 attention};

}  // namespace

const CpuKernels& THIMBLE_JOIN(cpu_kernels, THIMBLE_ISA)() { return kKernels; }

}  // namespace thimble
