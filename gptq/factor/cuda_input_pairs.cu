// cuda_input_pairs.cu: both models side by side on one device, stopped at the same input. What they read lies side by
// side in one buffer, whose Hessian is collected as any other. Their passes go on from there, batch after batch, when
// all activations have room; otherwise they begin anew.
#include <algorithm>
#include <optional>

#include "gptq/factor/cuda_input_pairs.h"
#include "gptq/statistics/hessian.cuh"
#include "runtime/base/memory_plan.h"
#include "runtime/cuda/cuda_forward.cuh"
#include "runtime/cuda/cuda_weights.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

constexpr int kThreads = 256;

// Keeps an input in half `half` of joint rows, (sequences * positions, 2 K).
template <typename T>
class HalfKeeper final : public CudaInputObserver<T> {
 public:
  HalfKeeper(int half, const DeviceArray<T>& joint) : half_(half), joint_(joint) {}

  void on_linear_input(std::span<const std::string>, const T* x, int sequences, int positions, int columns,
                       cudaStream_t stream) override {
    columns_ = columns;
    const size_t width = static_cast<size_t>(columns) * sizeof(T);
    check_cuda(cudaMemcpy2DAsync(joint_.data() + half_ * columns, 2 * width, x, width, width,
                                 static_cast<size_t>(sequences) * static_cast<size_t>(positions),
                                 cudaMemcpyDeviceToDevice, stream));
  }
  int columns() const { return columns_; }

 private:
  int half_;
  const DeviceArray<T>& joint_;
  int columns_ = 0;
};

// One batch on its way through one model.
template <typename T>
class Pass {
 public:
  Pass(const CudaModel<T>& model, int64_t length, int64_t sequences)
      : forward_(model, length, sequences * length, /*max_needed=*/1, /*stepping=*/false) {}

  void begin(const CudaBatch& batch, cudaStream_t stream) {
    forward_.begin(batch, stream);
    at_hand_ = 0;
  }
  // Goes on to an input and shows it.
  void show(int input, const CudaKeyValueCache<T>& cache, CudaInputObserver<T>& observer, cudaStream_t stream) {
    for (; at_hand_ < input; ++at_hand_) forward_.advance(at_hand_, cache, stream);
    forward_.show(input, observer, stream);
  }

 private:
  CudaForward<T> forward_;
  int at_hand_ = 0;
};

// What works on one batch at a time.
template <typename T>
struct Workspace {
  Workspace(const CudaModel<T>& model, int64_t length, int64_t sequences)
      : cache(model, sequences, length, 1),
        joint(sequences * length * 2 * std::max(model.config.model_dim, model.config.mlp_dim())) {}

  CudaKeyValueCache<T> cache;
  DeviceArray<T> joint;
};

// drift (K, K) of an InputPair from the packed joint Hessian.
__global__ void drift_kernel(const double* joint, int64_t columns, double* drift) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= columns * columns) return;
  const int64_t i = at / columns, j = at % columns, low = max(i, j), row = columns + i;
  drift[at] = joint[row * (row + 1) / 2 + j] - joint[low * (low + 1) / 2 + min(i, j)];
}

template <typename T>
class CudaInputPairs final : public InputPairs {
 public:
  // On the current device.
  CudaInputPairs(const Model& original, const Model& quantized, const Device& device, const TokenSequences& tokens,
                 int64_t sequences)
      : ordinal_(device.ordinals[0]),
        sequences_(sequences),
        length_(tokens.length),
        memory_limit_bytes_(device.memory_limit_bytes),
        numerics_(sizeof(T) == 2 ? Numerics::kBf16 : Numerics::kFp32),
        most_(std::min(sequences, cuda_windows_per_batch(ordinal_, tokens.length))) {
    const uint64_t usable = usable_memory(cuda_free_memory(ordinal_), memory_limit_bytes_);
    const std::optional<MemoryPlan> plan =
        plan_kept_input_pairs(original.config, numerics_, length_, sequences_, most_, usable);
    original_.emplace(original);
    quantized_.emplace(quantized);
    tokens_ = DeviceArray<uint16_t>(
        std::span(tokens.tokens).first(static_cast<size_t>(sequences) * static_cast<size_t>(length_)));
    zero_.fill_zero();
    if (!plan) return;
    try {
      keep(plan->batch);
    } catch (const OutOfDeviceMemory&) {
      forget();
    }
  }

  InputPair collect(std::span<const std::string> layers) override {
    DeviceScope scope(ordinal_);
    const auto input = static_cast<int>(input_of(original_->config, layers[0]));
    if (workspace_) {
      try {
        return collect_kept(input, layers);
      } catch (const OutOfDeviceMemory&) {  // others took what was planned for the Hessian
        forget();
      }
    }
    const uint64_t usable = usable_memory(cuda_free_memory(ordinal_), memory_limit_bytes_);
    const int64_t batch =
        plan_input_pairs(original_->config, numerics_, length_, sequences_, most_, /*keeps=*/false, usable).batch;
    return with_smaller_batches(batch, [&](int64_t size) { return collect_anew(input, layers, size); });
  }

  void replace(const std::string& name, const Matrix& values) override {
    DeviceScope scope(ordinal_);
    quantized_->replace(name, values, loader_);
  }

 private:
  struct PassPair {
    int64_t first, count;  // sequences
    Pass<T> original, quantized;
  };

  void keep(int64_t batch) {
    workspace_.emplace(*quantized_, length_, batch);
    for (int64_t first = 0; first < sequences_; first += batch) {
      const int64_t count = std::min(batch, sequences_ - first);
      kept_.push_back({first, count, Pass<T>(*original_, length_, count), Pass<T>(*quantized_, length_, count)});
      begin(kept_.back(), first, count);
    }
    stream_.wait();
  }

  void forget() {
    kept_.clear();
    workspace_.reset();
    collector_ = CudaHessianCollector();
  }

  void begin(PassPair& pair, int64_t first, int64_t count) {
    const CudaBatch batch{{tokens_.data() + first * length_, length_},
                          static_cast<int>(count),
                          static_cast<int>(length_ - 1),
                          static_cast<int>(length_ - 1),
                          zero_.data()};
    pair.original.begin(batch, stream_);
    pair.quantized.begin(batch, stream_);
  }

  // Enqueues what a batch reads. Returns K.
  int64_t read(PassPair& pair, int64_t count, int input, std::span<const std::string> layers, Workspace<T>& workspace) {
    HalfKeeper<T> one(0, workspace.joint), other(1, workspace.joint);
    pair.quantized.show(input, workspace.cache, one, stream_);
    pair.original.show(input, workspace.cache, other, stream_);
    const int64_t columns = one.columns();
    collector_.add(layers, workspace.joint.data(), 2 * columns, count, length_ - 1, 2 * columns, stream_);
    return columns;
  }

  InputPair collect_kept(int input, std::span<const std::string> layers) {
    int64_t columns = 0;
    for (PassPair& pair : kept_) columns = read(pair, pair.count, input, layers, *workspace_);
    return finish(columns);
  }

  InputPair collect_anew(int input, std::span<const std::string> layers, int64_t batch) {
    collector_ = CudaHessianCollector();
    Workspace<T> workspace(*quantized_, length_, batch);
    PassPair pair{0, batch, Pass<T>(*original_, length_, batch), Pass<T>(*quantized_, length_, batch)};
    int64_t columns = 0;
    for (int64_t first = 0; first < sequences_; first += batch) {
      const int64_t count = std::min(batch, sequences_ - first);
      begin(pair, first, count);
      columns = read(pair, count, input, layers, workspace);
    }
    InputPair result = finish(columns);
    collector_.free_workspace();
    return result;
  }

  InputPair finish(int64_t columns) {
    stream_.wait();
    const DeviceArray<double> joint = collector_.take_mean();
    DeviceArray<double> drift(columns * columns);
    drift_kernel<<<divide_up(drift.count(), kThreads), kThreads, 0, stream_>>>(joint.data(), columns, drift.data());
    check_cuda(cudaGetLastError());
    InputPair pair{SymmetricMatrix(columns), MatrixF64(columns, columns)};
    const std::span<double> hessian = pair.hessian.values();  // the first rows of the joint one
    check_cuda(cudaMemcpyAsync(hessian.data(), joint.data(), hessian.size_bytes(), cudaMemcpyDeviceToHost, stream_));
    check_cuda(cudaMemcpyAsync(pair.drift.row(0), drift.data(), drift.bytes(), cudaMemcpyDeviceToHost, stream_));
    stream_.wait();
    return pair;
  }

  int ordinal_;
  int64_t sequences_, length_;
  uint64_t memory_limit_bytes_;
  Numerics numerics_;
  int64_t most_;  // sequences at a time
  std::optional<CudaModel<T>> original_, quantized_;
  CudaWeightLoader<T> loader_;
  CudaStream stream_;
  DeviceArray<uint16_t> tokens_;
  DeviceArray<int> zero_{1};
  CudaHessianCollector collector_;
  std::optional<Workspace<T>> workspace_;  // of passes that are kept
  std::vector<PassPair> kept_;
};

}  // namespace

std::unique_ptr<InputPairs> make_cuda_input_pairs(const Model& original, const Model& quantized, const Device& device,
                                                  const TokenSequences& tokens, int64_t sequences) {
  DeviceScope scope(device.ordinals[0]);
  if (device.numerics == Numerics::kBf16)
    return std::make_unique<CudaInputPairs<__nv_bfloat16>>(original, quantized, device, tokens, sequences);
  return std::make_unique<CudaInputPairs<float>>(original, quantized, device, tokens, sequences);
}

}  // namespace thimble
