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

inline ConstMap<float> head_rows(const float* first, int64_t rows, int64_t stride, const AttentionTile& t) {
  return {first, rows, t.head_dim, Eigen::OuterStride<>(stride)};
}
inline MutableMap<float> head_rows(float* first, int64_t rows, int64_t stride, const AttentionTile& t) {
  return {first, rows, t.head_dim, Eigen::OuterStride<>(stride)};
}
inline ConstMap<float> queries_of(const AttentionTile& t) { return head_rows(t.q, t.rows, t.q_stride, t); }
inline ConstMap<float> keys_of(const AttentionTile& t) { return map(t.k.float32()); }
inline ConstMap<float> values_of(const AttentionTile& t) { return map(t.v.float32()); }

inline int64_t first_key(const AttentionTile& t, int64_t row) { return first_seen(t.first_position + row, t.window); }

// Attention's weights (rows, keys) in the tile's scratch, zero where a row does not see the key.
inline MutableMap<float> attention_weights(const AttentionTile& t, const AttentionRoundings& roundings) {
  const int64_t keys = t.first_position + t.rows;
  MutableMap<float> weights(t.scratch, t.rows, keys, Eigen::OuterStride<>(keys));
  weights.noalias() = queries_of(t) * keys_of(t).transpose();
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
