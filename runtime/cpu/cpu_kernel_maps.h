// cpu_kernel_maps.h: what the files that are compiled once per instruction set share: Eigen under a name of that set,
// views as Eigen maps, and the pieces that forward and backward kernels compute alike. Included by those files alone,
// with THIMBLE_ISA defined: everything here has internal linkage or lies in a namespace named after the instruction
// set, otherwise the linker could pick an AVX-512 copy of a shared template for a machine that has no AVX-512.
#pragma once

#include "runtime/tensor/matrix.h"

#define THIMBLE_JOIN_(a, b) a##_##b
#define THIMBLE_JOIN(a, b) THIMBLE_JOIN_(a, b)

#define Eigen THIMBLE_JOIN(Eigen, THIMBLE_ISA)
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

namespace thimble {
namespace {

constexpr float kMinValueNorm = 1e-12f;

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

// 1 / sqrt(mean(x^2) + epsilon).
[[maybe_unused]] float inverse_rms(const float* x, float epsilon, int64_t n) {
  return 1.0f / __builtin_sqrtf(ConstRow(x, n).square().sum() / static_cast<float>(n) + epsilon);
}

// Softmax numerators of one row of scores times `scale`, in place, over its `valid` keys; zero beyond. Returns 1 /
// their sum.
[[maybe_unused]] float exponentiate(float* scores, int64_t valid, int64_t keys, float scale) {
  Row row(scores, valid);
  float peak = row.maxCoeff();
  row = ((row - peak) * scale).exp();
  for (int64_t j = valid; j < keys; ++j) scores[j] = 0.0f;
  return 1.0f / row.sum();
}

}  // namespace
}  // namespace thimble
