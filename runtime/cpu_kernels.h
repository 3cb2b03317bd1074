// cpu_kernels.h: the table of kernels that are compiled once per instruction set (cpu_kernels.cpp).
// Internal to runtime/. Every kernel runs on the calling thread; parallel loops are the callers' business.
#pragma once

#include <cstdint>

#include "runtime/matrix.h"

namespace thimble {

struct CpuKernels {
  const char* name;

  // C (M,N) = A (M,K) B^T, B (N,K).
  void (*gemm_nt)(ConstMatrixView a, ConstMatrixView b, MatrixView c);
  // C (M,N) = A (M,K) B, B (K,N).
  void (*gemm_nn)(ConstMatrixView a, ConstMatrixView b, MatrixView c);
  // C (M,N) += A^T B, A (T,M), B (T,N).
  void (*gemm_tn_add)(ConstMatrixView a, ConstMatrixView b, MatrixView c);
  // C (M,N) -= A (M,K) B, B (K,N).
  void (*gemm_nn_sub_f64)(ConstMatrixViewF64 a, ConstMatrixViewF64 b, MatrixViewF64 c);
};

// The best table for this machine (see cpu_instruction_set()).
const CpuKernels& cpu_kernels();

// One per compiled instruction set; declared for all, defined for those that the build has.
const CpuKernels& cpu_kernels_portable();
const CpuKernels& cpu_kernels_avx2();
const CpuKernels& cpu_kernels_avx512();

}  // namespace thimble
