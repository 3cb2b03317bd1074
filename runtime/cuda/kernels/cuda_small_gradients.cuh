// cuda_small_gradients.cuh: sums of the gradients of gains, scales, mixes and gates over any number of backward passes,
// on the device. Out: SmallGradients, as BackwardPass gives them, summed over the sequences in order.
#pragma once

#include "runtime/cpu/backward.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/families/golf/golf_config.h"

namespace thimble {

class CudaSmallGradients {
 public:
  // Where a layer's sums begin, one for each column of the products that they are sums of.
  struct Layer {
    double* q_gain = nullptr;                             // (H*d)
    double *attn_scale = nullptr, *mlp_scale = nullptr;   // (D)
    double *mix_x = nullptr, *mix_x0 = nullptr;           // (D)
    double *skip_weight = nullptr, *skip_gate = nullptr;  // (D); null where the layer has none
    double* value_embedding = nullptr;                    // (K); null where the layer has none
  };

  // All zero. On the current device.
  explicit CudaSmallGradients(const Model& model);

  void set_zero(cudaStream_t stream);
  // Waits for the stream.
  SmallGradients read(cudaStream_t stream) const;

  const Layer& layer(int64_t index) const { return layers_[static_cast<size_t>(index)]; }
  double* bigram_scale() const { return bigram_scale_; }  // (D); null without bigrams
  double* smear_gate() const { return smear_gate_; }      // (D); null without smear

 private:
  ModelConfig config_;
  DeviceArray<double> sums_;
  std::vector<Layer> layers_;
  double *bigram_scale_ = nullptr, *smear_gate_ = nullptr;
};

}  // namespace thimble
