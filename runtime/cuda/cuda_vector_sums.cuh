// cuda_vector_sums.cuh: gradients of a network's vectors, summed on the device over any number of backward passes. The
// device adds up one number for each column of the products that a vector's gradient is made of; the host puts these
// together: totals of scales of one element, heads' gains.
#pragma once

#include <vector>

#include "runtime/cuda/cuda_network_weights.cuh"

namespace thimble {

class CudaVectorSums {
 public:
  // All zero. On the current device.
  explicit CudaVectorSums(const Network& network);

  // Of a node: sums (columns) of kind 0 or 1.
  //   Linear        0: of dy                        LayerNorm  0: of dy * normed x   1: of dy
  //   Add           0: of dy * a                    RmsNorm    0: of dy * normed x
  //   Mix           0: of dy * x   1: of dy * a     Heads      0: of dy before the rotation * normed x
  //   Skip          0: of dy * a   1: of dy * x     Smear      0: of dy * (x[p-1] - x[p])
  // Null where the node has no such vector.
  double* at(size_t node, int kind) const;

  void set_zero(cudaStream_t stream);
  // Gradients by VectorId, empty where there is none. Waits for the stream. `weights`: at which they were summed.
  std::vector<std::vector<double>> read(const CudaNetworkWeights<float>& weights, cudaStream_t stream) const;

 private:
  const Network& network_;
  std::vector<std::vector<int64_t>> first_;  // by node and kind
  DeviceArray<double> sums_;
};

}  // namespace thimble
