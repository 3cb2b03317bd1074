// cuda_node_runner.cuh: runs nodes of a network one by one on a CUDA device, as CpuPass does, each rounding what it
// writes as the weights' policy says. T = float, __nv_bfloat16, __half.
#pragma once

#include "runtime/cuda/cuda_batch.cuh"
#include "runtime/cuda/cuda_gradient_products.cuh"
#include "runtime/cuda/cuda_network_weights.cuh"
#include "runtime/cuda/cuda_node_rows.cuh"
#include "runtime/cuda/cuda_products.cuh"

namespace thimble {

template <typename T>
class CudaNodeRunner {
 public:
  // `rotaries`: by RotaryId, as make_cuda_rotary_table() has them. Both must outlive the object. For up to `rows` rows,
  // 0 where no product needs its input copied.
  CudaNodeRunner(const CudaNetworkWeights<T>& weights, const std::vector<DeviceArray<float2>>& rotaries, int64_t rows,
                 bool stepping);

  // One node but Columns and Attention. Inputs and output have all rows of the batch. `cache` may be null where there
  // is no state.
  void run(const Node& node, std::span<const NodeRows<T>> inputs, const NodeRows<T>& output, const CudaBatch& batch,
           const CudaCache<T>* cache, cudaStream_t stream);
  const CudaProducts<T>& products() const { return products_; }
  // In the modes of NVFP4: what a product reads, norm(row) * x staged row by row, in a place that the next one takes.
  // Rows lie `stride` apart there too.
  const T* staged(const T* x, int64_t stride, int64_t rows, const HeadColumns& columns, const RowNorm& norm,
                  cudaStream_t stream);

 private:
  // Elements of a row of products' inputs that are not multiplied where they lie; 0: none is.
  static int64_t copied_width(const CudaNetworkWeights<T>& weights);
  void linear(const op::Linear& o, const NodeRows<T>& x, const NodeRows<T>& y, cudaStream_t stream);
  // Rows as a product of 16-byte pieces can read them: aligned, zero to the end of the last piece.
  NodeRows<T> product_input(const NodeRows<T>& x, cudaStream_t stream);
  const Rounding& rounding(Boundary boundary) const { return weights_.policy().at(boundary); }

  const CudaNetworkWeights<T>& weights_;
  const std::vector<DeviceArray<float2>>& rotaries_;
  bool stepping_;
  CudaProducts<T> products_;
  DeviceArray<T> input_;
};

}  // namespace thimble
