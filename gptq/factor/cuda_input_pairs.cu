// cuda_input_pairs.cu: both models side by side on one device, stopped at the same input. What they read lies side by
// side in one buffer, whose Hessian is collected as any other. Their passes go on from there, batch after batch, when
// all activations have room; otherwise they begin anew.
#include <algorithm>
#include <optional>

#include "gptq/factor/cuda_input_pairs.h"
#include "gptq/statistics/hessian.cuh"
#include "runtime/base/error.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/cuda_pass.cuh"

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

// What works on one batch at a time.
template <typename T>
struct Workspace {
  Workspace(const Network& network, int64_t length, int64_t sequences)
      : cache(network, sequences, length, /*shares_one=*/true),
        joint(sequences * length * 2 * cuda_shown_elements(network, 1)) {}

  CudaCache<T> cache;
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
  CudaInputPairs(const Weights& original, const Weights& quantized, const Device& device, const TokenSequences& tokens,
                 int64_t sequences)
      : network_(original.network),
        place_(device.ordinals[0], device.memory_limit_bytes),
        numerics_(device.numerics),
        sequences_(sequences),
        length_(tokens.length),
        most_(std::min(sequences, cuda_windows_per_batch(place_.ordinal, tokens.length))) {
    const std::optional<MemoryPlan> plan =
        plan_kept_input_pairs(*network_, numerics_, length_, sequences_, most_, usable_memory(place_));
    const NumericPolicy policy = numeric_policy(numerics_);
    original_.emplace(original, policy, cuda_fusion_options(policy, sizeof(T)));
    quantized_.emplace(quantized, policy, cuda_fusion_options(policy, sizeof(T)));
    tokens_ = DeviceArray<Token>(
        std::span(tokens.tokens).first(static_cast<size_t>(sequences) * static_cast<size_t>(length_)));
    zero_.fill_zero();
    if (!plan) return;
    try {
      keep(plan->batch);
    } catch (const OutOfDeviceMemory&) {
      forget();
    }
  }

  InputPair collect(const LinearInput& input) override {
    DeviceScope scope(place_.ordinal);
    const std::vector<std::string> layers = readers_of(input);
    if (workspace_) {
      try {
        return collect_kept(input, layers);
      } catch (const OutOfDeviceMemory&) {  // others took what was planned for the Hessian
        forget();
      }
    }
    const int64_t batch =
        plan_input_pairs(*network_, numerics_, length_, sequences_, most_, /*keeps=*/false, usable_memory(place_))
            .batch;
    return with_smaller_batches(batch, [&](int64_t size) { return collect_anew(input, layers, size); });
  }

  void replace(const std::string& name, const Matrix& values) override {
    DeviceScope scope(place_.ordinal);
    quantized_->replace(network_->id_of(name), values);
  }

 private:
  // One batch on its way through both models.
  struct PassPair {
    PassPair(const CudaNetworkWeights<T>& of_original, const CudaNetworkWeights<T>& of_quantized, int64_t length,
             int64_t sequences)
        : count(sequences),
          original(std::make_unique<CudaPass<T>>(of_original, shape_of(length, sequences))),
          quantized(std::make_unique<CudaPass<T>>(of_quantized, shape_of(length, sequences))) {}
    // Nobody reads the head's input.
    static CudaPassShape shape_of(int64_t length, int64_t sequences) {
      return {length, sequences * length, /*needed=*/1, /*stepping=*/false};
    }
    int64_t count;  // sequences
    std::unique_ptr<CudaPass<T>> original, quantized;
  };

  std::vector<std::string> readers_of(const LinearInput& input) const {
    std::vector<std::string> names;
    for (MatrixId id : input.readers) names.push_back(network_->matrix(id).name);
    return names;
  }

  void keep(int64_t batch) {
    workspace_.emplace(*network_, length_, batch);
    for (int64_t first = 0; first < sequences_; first += batch) {
      kept_.emplace_back(*original_, *quantized_, length_, std::min(batch, sequences_ - first));
      begin(kept_.back(), first, kept_.back().count, *workspace_);
    }
    stream_.wait();
  }

  void forget() {
    kept_.clear();
    workspace_.reset();
    collector_ = CudaHessianCollector();
  }

  void begin(PassPair& pair, int64_t first, int64_t count, Workspace<T>& workspace) {
    const CudaBatch batch{{tokens_.data() + first * length_, length_},
                          static_cast<int>(count),
                          static_cast<int>(length_ - 1),
                          static_cast<int>(length_ - 1),
                          zero_.data()};
    pair.original->begin(batch, workspace.cache, stream_);
    pair.quantized->begin(batch, workspace.cache, stream_);
  }

  // Enqueues what a batch reads. Returns K.
  int64_t read(PassPair& pair, int64_t count, const LinearInput& input, std::span<const std::string> layers,
               Workspace<T>& workspace) {
    HalfKeeper<T> one(0, workspace.joint), other(1, workspace.joint);
    pair.quantized->run_to(input.first_reader);
    pair.quantized->show(input, one);
    pair.original->run_to(input.first_reader);
    pair.original->show(input, other);
    const int64_t columns = one.columns();
    collector_.add(layers, workspace.joint.data(), 2 * columns, count, length_ - 1, 2 * columns, stream_);
    return columns;
  }

  InputPair collect_kept(const LinearInput& input, std::span<const std::string> layers) {
    int64_t columns = 0;
    for (PassPair& pair : kept_) columns = read(pair, pair.count, input, layers, *workspace_);
    return finish(columns);
  }

  InputPair collect_anew(const LinearInput& input, std::span<const std::string> layers, int64_t batch) {
    collector_ = CudaHessianCollector();
    Workspace<T> workspace(*network_, length_, batch);
    PassPair pair(*original_, *quantized_, length_, batch);
    int64_t columns = 0;
    for (int64_t first = 0; first < sequences_; first += batch) {
      const int64_t count = std::min(batch, sequences_ - first);
      begin(pair, first, count, workspace);
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

  std::shared_ptr<const Network> network_;
  CudaPlace place_;
  Numerics numerics_;
  int64_t sequences_, length_;
  int64_t most_;  // sequences at a time
  std::optional<CudaNetworkWeights<T>> original_, quantized_;
  CudaStream stream_;
  DeviceArray<Token> tokens_;
  DeviceArray<int> zero_{1};
  CudaHessianCollector collector_;
  std::optional<Workspace<T>> workspace_;  // of passes that are kept
  std::vector<PassPair> kept_;
};

}  // namespace

std::unique_ptr<InputPairs> make_cuda_input_pairs(const std::shared_ptr<const Weights>& original,
                                                  const std::shared_ptr<const Weights>& quantized, const Device& device,
                                                  const TokenSequences& tokens, int64_t sequences) {
  DeviceScope scope(device.ordinals[0]);
  return with_cuda_type(device.numerics, [&]<typename T>(T*) -> std::unique_ptr<InputPairs> {
    return std::make_unique<CudaInputPairs<T>>(*original, *quantized, device, tokens, sequences);
  });
}

}  // namespace thimble
