// cuda_input_pairs.cu: both models side by side on one device; their inputs lie side by side in one buffer, whose
// Hessian is collected as any other.
#include <algorithm>

#include "gptq/cuda_input_pairs.h"
#include "gptq/hessian.cuh"
#include "gptq/hessian_tree.h"
#include "runtime/cuda_devices.h"
#include "runtime/cuda_model.cuh"
#include "runtime/cuda_scorer.cuh"

namespace thimble {
namespace {

// Keeps one input of a batch in half `half` of joint rows, (sequences * positions, 2 K).
template <typename T>
class HalfKeeper final : public CudaInputObserver<T> {
 public:
  HalfKeeper(std::span<const std::string> layers, int half, DeviceArray<T>& joint)
      : layers_(layers), half_(half), joint_(joint) {}

  void on_linear_input(std::span<const std::string> layers, const T* x, int sequences, int positions, int columns,
                       cudaStream_t stream) override {
    if (!std::ranges::equal(layers, layers_)) return;
    columns_ = columns;
    const int64_t rows = int64_t{1} * sequences * positions;
    joint_.reserve(rows * 2 * columns);
    const size_t width = static_cast<size_t>(columns) * sizeof(T);
    check_cuda(cudaMemcpy2DAsync(joint_.data() + half_ * columns, 2 * width, x, width, width, static_cast<size_t>(rows),
                                 cudaMemcpyDeviceToDevice, stream));
  }
  int columns() const { return columns_; }

 private:
  std::span<const std::string> layers_;
  int half_;
  DeviceArray<T>& joint_;
  int columns_ = 0;
};

template <typename T>
SymmetricMatrix joint_hessian(const CudaModel<T>& original, const CudaModel<T>& quantized, const TokenSequences& tokens,
                              int64_t sequences, std::span<const std::string> layers, int64_t batch) {
  CudaScorer<T> original_scorer(original, tokens.length, batch), quantized_scorer(quantized, tokens.length, batch);
  DeviceArray<T> joint;
  CudaHessianCollector collector;
  CudaStream stream;
  for (int64_t first = 0; first < sequences; first += batch) {
    const int64_t count = std::min(batch, sequences - first);
    const auto part =
        std::span(tokens.tokens)
            .subspan(static_cast<size_t>(first * tokens.length), static_cast<size_t>(count * tokens.length));
    HalfKeeper<T> one(layers, 0, joint), other(layers, 1, joint);
    quantized_scorer.observe(part, count, tokens.length - 1, tokens.length, one);
    original_scorer.observe(part, count, tokens.length - 1, tokens.length, other);
    collector.add(layers, joint.data(), 2 * one.columns(), count, tokens.length - 1, 2 * one.columns(), stream);
    stream.wait();
  }
  return std::move(collector).finish().at(layers[0])->matrix;
}

template <typename T>
SymmetricMatrix joint_hessian(const Model& original, const Model& quantized, const Device& device,
                              const TokenSequences& tokens, int64_t sequences, std::span<const std::string> layers) {
  const int ordinal = device.ordinals[0];
  DeviceScope scope(ordinal);
  const CudaModel<T> first(original), second(quantized);
  // Two passes' buffers and the joint rows: a third of what one pass could take.
  const uint64_t usable = usable_memory(cuda_free_memory(ordinal), device.memory_limit_bytes) / 3;
  const int64_t most = std::min(sequences, cuda_windows_per_batch(ordinal, tokens.length));
  const int64_t batch =
      plan_hessians(original.config, device.numerics, tokens.length, most, live_sums(1), usable).batch;
  return with_smaller_batches(
      batch, [&](int64_t size) { return joint_hessian(first, second, tokens, sequences, layers, size); });
}

}  // namespace

SymmetricMatrix joint_hessian_cuda(const Model& original, const Model& quantized, const Device& device,
                                   const TokenSequences& tokens, int64_t sequences,
                                   std::span<const std::string> layers) {
  return device.numerics == Numerics::kBf16
             ? joint_hessian<__nv_bfloat16>(original, quantized, device, tokens, sequences, layers)
             : joint_hessian<float>(original, quantized, device, tokens, sequences, layers);
}

}  // namespace thimble
