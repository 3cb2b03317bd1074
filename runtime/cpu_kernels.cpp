// cpu_kernels.cpp: the kernels of cpu_kernels.h, compiled once per instruction set with THIMBLE_ISA set to its name.
// Everything here has internal linkage or lies in a namespace named after the instruction set (Eigen's included):
// otherwise the linker could pick an AVX-512 copy of a shared template for a machine that has no AVX-512.
#include "runtime/cpu_kernels.h"

#define THIMBLE_JOIN_(a, b) a##_##b
#define THIMBLE_JOIN(a, b) THIMBLE_JOIN_(a, b)
#define THIMBLE_STRING_(a) #a
#define THIMBLE_STRING(a) THIMBLE_STRING_(a)

#define Eigen THIMBLE_JOIN(Eigen, THIMBLE_ISA)
#define EIGEN_DONT_PARALLELIZE
#include <Eigen/Core>

namespace thimble {
namespace {

template <typename T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using MutableMap = Eigen::Map<RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<>>;
template <typename T>
using ConstMap = Eigen::Map<const RowMajor<T>, Eigen::Unaligned, Eigen::OuterStride<>>;

template <typename T>
MutableMap<T> map(BasicMatrixView<T> m) {
  return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)};
}
template <typename T>
ConstMap<T> map(BasicMatrixView<const T> m) {
  return {m.data, m.rows, m.cols, Eigen::OuterStride<>(m.stride)};
}

void gemm_nt(ConstMatrixView a, ConstMatrixView b, MatrixView c) { map(c).noalias() = map(a) * map(b).transpose(); }
void gemm_nn(ConstMatrixView a, ConstMatrixView b, MatrixView c) { map(c).noalias() = map(a) * map(b); }
void gemm_tn_add(ConstMatrixView a, ConstMatrixView b, MatrixView c) {
  map(c).noalias() += map(a).transpose() * map(b);
}
void gemm_nn_sub_f64(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c) {
  map(c).noalias() -= map(a) * map(b);
}

constexpr CpuKernels kKernels = {THIMBLE_STRING(THIMBLE_ISA), gemm_nt, gemm_nn, gemm_tn_add, gemm_nn_sub_f64};

}  // namespace

const CpuKernels& THIMBLE_JOIN(cpu_kernels, THIMBLE_ISA)() { return kKernels; }

}  // namespace thimble
