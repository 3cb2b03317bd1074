// cuda_products_impl.cuh: the members of CudaProducts, for the sources that instantiate them, one for each T: a
// compiler takes minutes for all.
#pragma once

#include <algorithm>
#include <type_traits>

#include "runtime/cuda/cuda_products.cuh"
#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/cuda_gemm_sm90.cuh"
#include "runtime/cuda/kernels/products/cuda_step_product.cuh"

namespace thimble {

template <typename T>
CudaProducts<T>::CudaProducts(bool stepping)
    : stepping_(stepping), sm90_(sizeof(T) == 2 && !stepping && has_sm90_kernels()) {}

template <typename T>
int CudaProducts<T>::square_parts(int64_t width) const {
  if (stepping_) return divide_up(width, is_split(width) ? kSplitColumns : kTileColumns);
  return divide_up(width, kWindowColumns);
}

template <typename T>
template <typename Epilogue>
void CudaProducts<T>::multiply(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) const {
  if (stepping_) return multiply_step<kSplitColumns>(operands, epilogue, stream);
  multiply_window(operands, epilogue, stream);
}

template <typename T>
template <int kColumns, typename Epilogue>
void CudaProducts<T>::multiply_step(const GemmOperands<T>& operands, const Epilogue& epilogue,
                                    cudaStream_t stream) const {
  if constexpr (sizeof(T) == 2) {
    if (is_split(operands.columns))
      return launch_step_product<T, kColumns>(operands, epilogue, /*overlaps=*/true, stream);
  }
  launch_gemm<T, 1, kTileColumns, 4>(operands, epilogue, stream);
}

template <typename T>
template <typename Epilogue>
void CudaProducts<T>::multiply_window(const GemmOperands<T>& operands, const Epilogue& epilogue,
                                      cudaStream_t stream) const {
  if constexpr (sizeof(T) == 2) {
    if (sm90_) return launch_gemm_sm90<T, kWindowColumns>(operands, epilogue, stream);
  }
  // fp32 keeps twice the operands' bytes in shared memory, and its products in as many registers.
  launch_gemm<T, sizeof(T) == 4 ? 1 : 2, kWindowColumns, 3>(operands, epilogue, stream);
}

template <typename T>
template <int kHead, QkvKind kKind>
void CudaProducts<T>::project_heads(const GemmOperands<T>& operands, const QkvOperands<T>& q,
                                    cudaStream_t stream) const {
  const QkvEpilogue<T, kHead, kKind> epilogue{q};
  constexpr int kColumns = std::max(kHead, kTileColumns);  // heads stay whole
  if constexpr (kColumns > kWindowColumns) {
    if (!sm90_) return launch_gemm<T, 1, kColumns, 3>(operands, epilogue, stream);
    if constexpr (sizeof(T) == 2) launch_gemm_sm90<T, kColumns>(operands, epilogue, stream);
  } else {
    if constexpr (kKind != QkvKind::kShared) {
      if constexpr (kColumns == kTileColumns) {
        if (stepping_) return multiply_step<kColumns>(operands, epilogue, stream);
      }
      if (stepping_) return launch_gemm<T, 1, kColumns, 3>(operands, epilogue, stream);
    }
    multiply_window(operands, epilogue, stream);
  }
}

template <typename T>
void CudaProducts<T>::project(const GemmOperands<T>& operands, const QkvOperands<T>& qkv, QkvKind kind, int head_width,
                              cudaStream_t stream) const {
  auto with_kind = [&]<int kHead>(std::integral_constant<int, kHead>) {
    switch (kind) {
      case QkvKind::kUnbiased: return project_heads<kHead, QkvKind::kUnbiased>(operands, qkv, stream);
      case QkvKind::kShared: return project_heads<kHead, QkvKind::kShared>(operands, qkv, stream);
      case QkvKind::kBiased: return project_heads<kHead, QkvKind::kBiased>(operands, qkv, stream);
    }
  };
  with_head_width(head_width, with_kind);
}

template <typename T>
void CudaProducts<T>::add(const GemmOperands<T>& operands, T* u, int64_t stride, const float* scale, const float* bias,
                          const RowSquares& squares, cudaStream_t stream) const {
  if (bias)
    return multiply(operands, ResidualEpilogue<T, true>{u, stride, scale, squares, operands.rows, bias}, stream);
  multiply(operands, ResidualEpilogue<T, false>{u, stride, scale, squares, operands.rows, nullptr}, stream);
}

template <typename T>
void CudaProducts<T>::end_layer(const GemmOperands<T>& operands, const LayerEndEpilogue<T>& end,
                                cudaStream_t stream) const {
  multiply(operands, end, stream);
}

template <typename T>
void CudaProducts<T>::activate(const GemmOperands<T>& operands, const RowNorm& norm, Activation activation,
                               const float* bias, T* out, int64_t stride, cudaStream_t stream) const {
  with_activation(activation, [&]<Activation kActivation>(ActivationConstant<kActivation>) {
    if (bias) return multiply(operands, ActivationEpilogue<T, kActivation, true>{norm, out, stride, bias}, stream);
    multiply(operands, ActivationEpilogue<T, kActivation, false>{norm, out, stride, nullptr}, stream);
  });
}

template <typename T>
void CudaProducts<T>::gate(const GemmOperands<T>& operands, const RowNorm& norm, Activation activation, T* out,
                           int64_t stride, cudaStream_t stream) const {
  with_activation(activation, [&]<Activation kActivation>(ActivationConstant<kActivation>) {
    multiply(operands, GateEpilogue<T, kActivation>{norm, out, stride}, stream);
  });
}

template <typename T>
void CudaProducts<T>::linear(const GemmOperands<T>& operands, const RoundedEpilogue<T>& rounded,
                             cudaStream_t stream) const {
  multiply(operands, rounded, stream);
}

template <typename T>
template <bool kRounds>
void CudaProducts<T>::logits(const GemmOperands<T>& operands, const LogitsEpilogue<kRounds>& epilogue,
                             cudaStream_t stream) const {
  if (stepping_) return multiply_step<kSplitColumns>(operands, epilogue, stream);
  launch_gemm<T, 1, kTileColumns, 4>(operands, epilogue, stream);
}

template <typename T>
template <bool kRounds>
void CudaProducts<T>::loss(const GemmOperands<T>& operands, const LossEpilogue<kRounds>& epilogue,
                           cudaStream_t stream) const {
  if constexpr (sizeof(T) == 2) {
    constexpr int kRowGroup = 16;  // with as many tiles of columns, about those that run at once
    if (sm90_) {
      auto map = [&](const T* data, int64_t rows, int64_t stride) {
        return factor_map_sm90(data, rows, operands.depth, stride, /*runs_along_depth=*/true);
      };
      const TileGrid grid{operands.depth, divide_up(operands.rows, kWindowColumns),
                          divide_up(operands.columns, kWindowColumns), kRowGroup};
      return launch_tile_product_sm90<T, true, true>(map(operands.a, operands.rows, operands.a_stride),
                                                     map(operands.b, operands.columns, operands.depth), grid,
                                                     /*batch=*/1, epilogue, stream);
    }
  }
  launch_gemm<T, 1, kTileColumns, 4>(operands, epilogue, stream);
}

#define THIMBLE_INSTANTIATE_PRODUCTS(T)                                                                               \
  template class CudaProducts<T>;                                                                                     \
  template void CudaProducts<T>::logits<false>(const GemmOperands<T>&, const LogitsEpilogue<false>&, cudaStream_t)    \
      const;                                                                                                          \
  template void CudaProducts<T>::logits<true>(const GemmOperands<T>&, const LogitsEpilogue<true>&, cudaStream_t)      \
      const;                                                                                                          \
  template void CudaProducts<T>::loss<false>(const GemmOperands<T>&, const LossEpilogue<false>&, cudaStream_t) const; \
  template void CudaProducts<T>::loss<true>(const GemmOperands<T>&, const LossEpilogue<true>&, cudaStream_t) const;

}  // namespace thimble
