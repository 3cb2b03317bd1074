// cuda_products.cuh: the products of a forward pass with what follows each: which tiles and which kernel a device and a
// number of rows take. A row's result depends on its own values and the weights alone. T = float, __nv_bfloat16,
// __half.
#pragma once

#include "runtime/cuda/kernels/cuda_gemm.cuh"
#include "runtime/cuda/kernels/cuda_head_epilogues.cuh"
#include "runtime/cuda/kernels/cuda_qkv_epilogue.cuh"

namespace thimble {

template <typename T>
class CudaProducts {
 public:
  // Of the current device. `stepping`: products have few rows.
  explicit CudaProducts(bool stepping);

  bool uses_sm90() const { return sm90_; }
  // Parts in which epilogues leave the squares of rows of `width` columns.
  int square_parts(int64_t width) const;

  // head_width: 32, 64, 128 or 256.
  void project(const GemmOperands<T>& operands, const QkvOperands<T>& qkv, QkvKind kind, int head_width,
               cudaStream_t stream) const;
  // u += scale * (product + bias); null scale: 1, null bias: 0.
  void add(const GemmOperands<T>& operands, T* u, int64_t stride, const float* scale, const float* bias,
           const RowSquares& squares, cudaStream_t stream) const;
  void end_layer(const GemmOperands<T>& operands, const LayerEndEpilogue<T>& end, cudaStream_t stream) const;
  // out = f(norm * product + bias).
  void activate(const GemmOperands<T>& operands, const RowNorm& norm, Activation activation, const float* bias, T* out,
                int64_t stride, cudaStream_t stream) const;
  // out = f(norm * gate) * (norm * other), of products with four columns of the gate, four of the other, and so on.
  void gate(const GemmOperands<T>& operands, const RowNorm& norm, Activation activation, T* out, int64_t stride,
            cudaStream_t stream) const;
  void linear(const GemmOperands<T>& operands, const RoundedEpilogue<T>& rounded, cudaStream_t stream) const;

  // The output head. kRounds: as numeric modes want it.
  template <bool kRounds>
  void logits(const GemmOperands<T>& operands, const LogitsEpilogue<kRounds>& epilogue, cudaStream_t stream) const;
  template <bool kRounds>
  void loss(const GemmOperands<T>& operands, const LossEpilogue<kRounds>& epilogue, cudaStream_t stream) const;
  // Tiles of a head's product, each of which leaves a part of the loss; and as many as there may be.
  int loss_tiles(int64_t vocabulary) const { return divide_up(vocabulary, sm90_ ? kWindowColumns : kTileColumns); }
  static int most_loss_tiles(int64_t vocabulary) { return divide_up(vocabulary, kTileColumns); }

 private:
  template <typename Epilogue>
  void multiply(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) const;
  template <int kColumns, typename Epilogue>
  void multiply_step(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) const;
  template <typename Epilogue>
  void multiply_window(const GemmOperands<T>& operands, const Epilogue& epilogue, cudaStream_t stream) const;
  static bool is_split(int64_t columns) { return sizeof(T) == 2 && columns <= kMostSplitColumns; }
  template <int kHead, QkvKind kKind>
  void project_heads(const GemmOperands<T>& operands, const QkvOperands<T>& qkv, cudaStream_t stream) const;

  // Columns of a product's tile: of one position per sequence where warps split K, and where they do not; of whole
  // windows.
  static constexpr int kSplitColumns = 32, kTileColumns = 64, kWindowColumns = 128;
  // Wider products of few rows keep a device busy without splitting K, and read their weights once. Rows do not count:
  // a row must have the same bits in any batch.
  static constexpr int64_t kMostSplitColumns = 4096;

  bool stepping_, sm90_;
};

}  // namespace thimble
