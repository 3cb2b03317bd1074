// cuda_hessians.cu: the forward pass on a CUDA device with CudaHessianCollector listening to its layers' inputs.
#include "gptq/cuda_hessians.h"

#include <algorithm>

#include "gptq/hessian.cuh"
#include "runtime/cuda_model.cuh"
#include "runtime/cuda_scorer.cuh"

namespace thimble {
namespace {

template <typename T>
class CollectingObserver final : public CudaInputObserver<T> {
 public:
  void on_linear_input(std::span<const std::string> weights, const T* x, int sequences, int positions, int columns,
                       cudaStream_t stream) override {
    collector.add(weights, x, columns, sequences, positions, columns, stream);
  }

  CudaHessianCollector collector;
};

template <typename T>
HessianSet collect(const Model& model, const TokenSequences& sequences, Progress& progress) {
  CudaModel<T> device_model(model);
  CudaScorer<T> scorer(device_model, sequences.length);
  CollectingObserver<T> observer;
  progress.begin("collecting Hessians", sequences.count, "sequences");
  for (int64_t first = 0; first < sequences.count; first += scorer.windows()) {
    int64_t count = std::min(scorer.windows(), sequences.count - first);
    auto tokens =
        std::span(sequences.tokens)
            .subspan(static_cast<size_t>(first * sequences.length), static_cast<size_t>(count * sequences.length));
    scorer.observe(tokens, count, sequences.length - 1, sequences.length, observer);
    progress.advance(count);
  }
  progress.end();
  return std::move(observer.collector).finish();
}

}  // namespace

HessianSet collect_hessians_cuda(const Model& model, const Device& device, const TokenSequences& sequences,
                                 Progress& progress) {
  DeviceScope scope(device.ordinals.front());
  if (device.numerics == Numerics::kFp32) return collect<float>(model, sequences, progress);
  return collect<__nv_bfloat16>(model, sequences, progress);
}

}  // namespace thimble
