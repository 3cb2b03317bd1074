// kernel_rows.h: what kernels of both passes are made of: rows and matrices as Eigen sees them, and attention's
// weights. Only for files that are compiled once per instruction set, with THIMBLE_ISA set to its name: everything here
// has internal linkage or lies in a namespace named after the instruction set. Otherwise the linker could pick an
// AVX-512 copy of a shared template for a machine that has no AVX-512.
#pragma once

#include <optional>

#include "runtime/cpu/cpu_kernels.h"

#define THIMBLE_JOIN_(a, b) a##_##b
#define THIMBLE_JOIN(a, b) THIMBLE_JOIN_(a, b)
#define THIMBLE_STRING_(a) #a
#define THIMBLE_STRING(a) THIMBLE_STRING_(a)

#define Eigen THIMBLE_JOIN(Eigen, THIMBLE_ISA)
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

#include "runtime/cpu/tile_products.h"
#include "runtime/cpu/widening_products.h"

namespace thimble {
namespace {

constexpr float kMinValueNorm = 1e-12f;
constexpr float kTwoSqrtTwoOverPi = 1.59576912f;

template <typename T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using MutableMap = Eigen::Map<RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <typename T>
using ConstMap = Eigen::Map<const RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
using Row = Eigen::Map<Eigen::ArrayXf>;
using ConstRow = Eigen::Map<const Eigen::ArrayXf>;

template <typename T>
MutableMap<T> map(BasicMatrixView<T> m) {
  return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)};
}
template <typename T>
ConstMap<T> map(BasicMatrixView<const T> m) {
  return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)};
}

// c = a m, or c += it.
template <typename Right>
void assign_product(ConstMatrixView a, const Right& m, MatrixView c, bool adds) {
  if (adds)
    map(c).noalias() += map(a) * m;
  else
    map(c).noalias() = map(a) * m;
}

// 1 / sqrt(mean(x^2) + epsilon).
inline float inverse_rms(const float* x, float epsilon, int64_t n) {
  return 1.0f / __builtin_sqrtf(ConstRow(x, n).square().sum() / static_cast<float>(n) + epsilon);
}

// Softmax numerators of one row of scores times `scale`, in place, over its `valid` keys; zero beyond. Returns 1 /
// their sum.
inline float exponentiate(float* scores, int64_t valid, int64_t keys, float scale) {
  Row row(scores, valid);
  float peak = row.maxCoeff();
  row = ((row - peak) * scale).exp();
  for (int64_t j = valid; j < keys; ++j) scores[j] = 0.0f;
  return 1.0f / row.sum();
}

inline void round_row(const RowRounding& r, float* x, int64_t n) {
  if (r.rounding) r.apply(*r.rounding, x, n);
}

inline ConstMatrixView queries_of(const AttentionTile& t) { return {t.q, t.rows, t.head_dim, t.q_stride}; }

// C = A B^T, C = A B and C += A^T B in the tile's arithmetic.
inline void tile_nt(const AttentionTile& t, ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  if (t.products) return t.products->nt(a, b, c);
  map(c).noalias() = map(a) * map(b.float32()).transpose();
}
inline void tile_nn(const AttentionTile& t, ConstMatrixView a, const StoredMatrixView& b, MatrixView c) {
  if (t.products) return t.products->nn(a, b, c);
  map(c).noalias() = map(a) * map(b.float32());
}
inline void tile_add_tn(const AttentionTile& t, ConstMatrixView a, ConstMatrixView b, MatrixView c) {
  if (t.products) return t.products->add_tn(a, b, c);
  map(c).noalias() += map(a).transpose() * map(b);
}

inline int64_t first_key(const AttentionTile& t, int64_t row) { return first_seen(t.first_position + row, t.window); }

// Attention's weights (rows, keys) in the tile's scratch, zero where a row does not see the key.
inline MatrixView attention_weights(const AttentionTile& t, const AttentionRoundings& roundings) {
  const int64_t keys = t.first_position + t.rows;
  const MatrixView weights(t.scratch, t.rows, keys);
  tile_nt(t, queries_of(t), t.k, weights);
  for (int64_t i = 0; i < t.rows; ++i) {
    float* row = t.scratch + i * keys;
    const int64_t first = first_key(t, i), valid = t.first_position + i + 1 - first;
    for (int64_t j = 0; j < first; ++j) row[j] = 0.0f;
    row += first;
    round_row(roundings.scores, row, valid);
    const float inverse_sum = exponentiate(row, valid, keys - first, t.scale);
    Row(row, valid) *= inverse_sum;
    round_row(roundings.weights, row, valid);
  }
  return weights;
}

}  // namespace
}  // namespace thimble
