// input_pairs.cu: both models side by side on one device, stopped at the same input. What they read lies side by
// side in one buffer, whose Hessian is collected as any other, part after part; of each, what a pair needs is added to
// the sums. Passes go on from there, batch after batch, when all activations have room; otherwise they begin anew.
#include "gptq/factor/input_pairs.h"

#include <algorithm>
#include <optional>

#include "gptq/statistics/hessian.cuh"
#include "runtime/base/error.h"
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
    const size_t width = static_cast<size_t>(columns) * sizeof(T);
    check_cuda(cudaMemcpy2DAsync(joint_.data() + half_ * columns, 2 * width, x, width, width,
                                 static_cast<size_t>(sequences) * static_cast<size_t>(positions),
                                 cudaMemcpyDeviceToDevice, stream));
  }

 private:
  int half_;
  const DeviceArray<T>& joint_;
};

int64_t widest_input(const Network& network) {
  int64_t widest = 0;
  for (const LinearInput& input : network.linear_inputs()) widest = std::max(widest, network.width_of(input.value));
  return widest;
}

// What works on one batch at a time.
template <typename T>
struct Workspace {
  Workspace(const Network& network, int64_t length, int64_t sequences)
      : cache(network, sequences, length, /*shares_one=*/true),
        joint(sequences * length * 2 * widest_input(network), "activations") {}

  CudaCache<T> cache;
  DeviceArray<T> joint;
};

// An InputPair in device memory.
struct DevicePair {
  explicit DevicePair(int64_t columns)
      : hessian(columns * (columns + 1) / 2, "Hessians"), drift(columns * columns, "Hessians") {}
  DeviceArray<double> hessian, drift;
};

// Adds hessian (K, K), packed, and drift (K, K) of the pair that the packed joint sum (2 K, 2 K) is of; `is_first`:
// puts them there.
__global__ void add_pair_kernel(const double* joint, int64_t columns, bool is_first, double* hessian, double* drift) {
  const int64_t at = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (at >= columns * columns) return;
  const int64_t i = at / columns, j = at % columns, low = max(i, j), row = columns + i;
  const double of_quantized = joint[low * (low + 1) / 2 + min(i, j)];
  const double difference = joint[row * (row + 1) / 2 + j] - of_quantized;
  drift[at] = is_first ? difference : drift[at] + difference;
  if (j > i) return;
  const int64_t packed = i * (i + 1) / 2 + j;
  hessian[packed] = is_first ? of_quantized : hessian[packed] + of_quantized;
}

__global__ void add_kernel(const double* values, int64_t count, double* sums) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < count) sums[i] += values[i];
}

__global__ void divide_kernel(double* values, int64_t count, double divisor) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < count) values[i] /= divisor;
}

// That of a packed lower triangle.
__global__ void diagonal_kernel(const double* packed, int64_t columns, double* diagonal) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < columns) diagonal[i] = packed[i * (i + 3) / 2];
}

// One batch on its way through both models.
template <typename T>
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

// Calls body(first, sequences) for the batches of a part.
template <typename Body>
void for_each_batch(const Share& part, int64_t most, const Body& body) {
  const auto end = static_cast<int64_t>(part.end);
  for (auto first = static_cast<int64_t>(part.begin); first < end; first += most)
    body(first, std::min(most, end - first));
}

int64_t largest_part(std::span<const Share> parts) {
  return static_cast<int64_t>(std::ranges::max(parts, {}, &Share::size).size());
}

// Makes all that CudaPairReader does, for passes over batches that are all kept, or of which there is one.
template <typename T>
void allocate_input_pairs(const std::shared_ptr<const Network>& network, const NumericPolicy& policy, int64_t length,
                          std::span<const Share> parts, bool keeps, int64_t batch) {
  const FusionOptions options = cuda_fusion_options(policy, sizeof(T));
  const CudaNetworkWeights<T> original(network, policy, options), quantized(network, policy, options);
  const DeviceArray<Token> tokens(static_cast<int64_t>(parts.back().end) * length, "tokens and scores");
  const Workspace<T> workspace(*network, length, batch);
  auto make_pass = [&](int64_t, int64_t sequences) {
    const PassPair<T> pair(original, quantized, length, sequences);
    for (CudaPass<T>* pass : {pair.original.get(), pair.quantized.get()}) pass->reserve_shown();
  };
  if (!keeps) make_pass(0, batch);
  for (const Share& part : parts)
    if (keeps) for_each_batch(part, batch, make_pass);
  const int64_t widest = widest_input(*network);
  CudaHessianCollector collector;
  const std::string names[] = {"joint"};
  collector.reserve_sum(names, 2 * widest);
  collector.reserve_products(2 * widest, batch, length);
  const DevicePair sums(widest);
}

template <typename T>
class CudaPairReader final : public PairReader {
 public:
  // On the current device.
  CudaPairReader(const Weights& original, const Weights& quantized, const CudaPlace& place, Numerics numerics,
                 const TokenSequences& tokens, std::span<const Share> parts)
      : network_(original.network),
        place_(place),
        numerics_(numerics),
        parts_(parts.begin(), parts.end()),
        length_(tokens.length),
        most_(std::min(largest_part(parts), cuda_windows_per_batch(place_.ordinal, tokens.length))) {
    const std::optional<MemoryPlan> plan =
        plan_kept_input_pairs(network_, numerics_, length_, parts_, most_, usable_memory(place_));
    const NumericPolicy policy = numeric_policy(numerics_);
    original_.emplace(original, policy, cuda_fusion_options(policy, sizeof(T)));
    quantized_.emplace(quantized, policy, cuda_fusion_options(policy, sizeof(T)));
    tokens_ = DeviceArray<Token>(std::span(tokens.tokens).first(parts_.back().end * static_cast<size_t>(length_)));
    zero_.fill_zero();
    if (!plan) return;
    try {
      keep(plan->batch);
    } catch (const OutOfDeviceMemory&) {
      forget();
    }
  }

  void read(const LinearInput& input, std::span<const Share> parts) override {
    DeviceScope scope(place_.ordinal);
    const std::vector<std::string> layers = readers_of(input);
    columns_ = network_->matrix(input.readers[0]).columns;
    for (const Share& part : parts) {
      if (workspace_) {
        try {
          add_part(part, [&] {
            for (auto& [first, pair] : kept_)
              if (part.begin <= first && first < part.end) show(pair, pair.count, input, layers, *workspace_);
          });
          continue;
        } catch (const OutOfDeviceMemory&) {  // others took what was planned for the Hessian
          forget();
        }
      }
      const int64_t batch =
          plan_input_pairs(network_, numerics_, length_, parts_, most_, /*keeps=*/false, usable_memory(place_)).batch;
      with_smaller_batches(batch, [&](int64_t size) {
        read_anew(input, part, layers, size);
        return 0;
      });
    }
  }

  // Needs less memory than a part whose joint sum is there.
  void add(PairReader& other) override {
    DeviceScope scope(place_.ordinal);
    auto& from = static_cast<CudaPairReader&>(other);
    const DevicePair more(columns_);
    for (auto [values, to, sums] : {std::tuple(&from.sums_->hessian, &more.hessian, &sums_->hessian),
                                    std::tuple(&from.sums_->drift, &more.drift, &sums_->drift)}) {
      copy_between_devices(to->data(), place_.ordinal, values->data(), from.place_.ordinal, values->bytes(), stream_);
      launch_kernel(add_kernel, {static_cast<unsigned>(divide_up(to->count(), kThreads)), kThreads}, stream_,
                    to->data(), to->count(), sums->data());
    }
    stream_.wait();
    from.sums_.reset();
  }

  InputPair take() override {
    DeviceScope scope(place_.ordinal);
    InputPair pair{SymmetricMatrix(columns_), MatrixF64(columns_, columns_)};
    download(pair.hessian.values(), static_cast<const double*>(sums_->hessian.data()), stream_);
    download(pair.drift.values(), static_cast<const double*>(sums_->drift.data()), stream_);
    stream_.wait();
    sums_.reset();
    return pair;
  }

  StoredPair take_means(int64_t tokens) override {
    DeviceScope scope(place_.ordinal);
    DevicePair sums = std::move(*sums_);
    sums_.reset();
    for (const DeviceArray<double>* values : {&sums.hessian, &sums.drift})
      launch_kernel(divide_kernel, {static_cast<unsigned>(divide_up(values->count(), kThreads)), kThreads}, stream_,
                    values->data(), values->count(), static_cast<double>(tokens));
    const DeviceArray<double> on_device(columns_);
    launch_kernel(diagonal_kernel, {static_cast<unsigned>(divide_up(columns_, kThreads)), kThreads}, stream_,
                  sums.hessian.data(), columns_, on_device.data());
    std::vector<double> diagonal(static_cast<size_t>(columns_));
    download(std::span(diagonal), static_cast<const double*>(on_device.data()), stream_);
    stream_.wait();
    // Each by itself: who has shifted weights has no use for the drift.
    return {std::make_shared<const StoredHessian>(held(std::move(sums.hessian)), std::move(diagonal)),
            held(std::move(sums.drift))};
  }

  void replace(const std::string& name, const StoredMatrix& values) override {
    DeviceScope scope(place_.ordinal);
    quantized_->replace(network_->id_of(name), values);
  }

 private:
  DeviceValues held(DeviceArray<double> array) const {
    const auto owner = std::make_shared<const DeviceArray<double>>(std::move(array));
    const std::span<const double> values(owner->data(), static_cast<size_t>(owner->count()));
    return {values, [owner, values, ordinal = place_.ordinal](std::span<double> to) {
              DeviceScope scope(ordinal);
              check_cuda(cudaMemcpy(to.data(), values.data(), values.size_bytes(), cudaMemcpyDeviceToHost));
            }};
  }

  std::vector<std::string> readers_of(const LinearInput& input) const {
    std::vector<std::string> names;
    for (MatrixId id : input.readers) names.push_back(network_->matrix(id).name);
    return names;
  }

  void keep(int64_t batch) {
    workspace_.emplace(*network_, length_, batch);
    for (const Share& part : parts_)
      for_each_batch(part, batch, [&](int64_t first, int64_t count) {
        PassPair<T>& pair =
            kept_.emplace_back(static_cast<size_t>(first), PassPair<T>(*original_, *quantized_, length_, count)).second;
        begin(pair, first, count, *workspace_);
      });
    stream_.wait();
  }

  void forget() {
    kept_.clear();
    workspace_.reset();
    collector_ = CudaHessianCollector();
  }

  void begin(PassPair<T>& pair, int64_t first, int64_t count, Workspace<T>& workspace) {
    const CudaBatch batch{{tokens_.data() + first * length_, length_},
                          static_cast<int>(count),
                          static_cast<int>(length_ - 1),
                          static_cast<int>(length_ - 1),
                          zero_.data()};
    pair.original->begin(batch, workspace.cache, stream_);
    pair.quantized->begin(batch, workspace.cache, stream_);
  }

  // Enqueues what a batch reads.
  void show(PassPair<T>& pair, int64_t count, const LinearInput& input, std::span<const std::string> layers,
            Workspace<T>& workspace) {
    HalfKeeper<T> one(0, workspace.joint), other(1, workspace.joint);
    pair.quantized->run_to(input.first_reader);
    pair.quantized->show(input, one);
    pair.original->run_to(input.first_reader);
    pair.original->show(input, other);
    collector_.add(layers, workspace.joint.data(), 2 * columns_, count, length_ - 1, 2 * columns_, stream_);
  }

  void read_anew(const LinearInput& input, const Share& part, std::span<const std::string> layers, int64_t batch) {
    collector_ = CudaHessianCollector();
    Workspace<T> workspace(*network_, length_, batch);
    PassPair<T> pair(*original_, *quantized_, length_, batch);
    add_part(part, [&] {
      for_each_batch(part, batch, [&](int64_t first, int64_t count) {
        begin(pair, first, count, workspace);
        show(pair, count, input, layers, workspace);
      });
    });
    collector_.free_workspace();
  }

  // Adds what show_part() enqueues. Where there is no room for it, the sums are as before.
  template <typename ShowPart>
  void add_part(const Share& part, const ShowPart& show_part) {
    collector_.begin_at(static_cast<int64_t>(part.begin));
    show_part();
    const DeviceArray<double> joint = collector_.take_sum();
    const bool is_first = !sums_;
    if (is_first) sums_.emplace(columns_);
    launch_kernel(add_pair_kernel, {static_cast<unsigned>(divide_up(columns_ * columns_, kThreads)), kThreads}, stream_,
                  joint.data(), columns_, is_first, sums_->hessian.data(), sums_->drift.data());
    stream_.wait();  // the joint sum goes
  }

  std::shared_ptr<const Network> network_;
  CudaPlace place_;
  Numerics numerics_;
  const std::vector<Share> parts_;
  int64_t length_;
  int64_t most_;         // sequences at a time
  int64_t columns_ = 0;  // K of the input that was read last
  std::optional<CudaNetworkWeights<T>> original_, quantized_;
  CudaStream stream_;
  DeviceArray<Token> tokens_;
  DeviceArray<int> zero_{1};
  CudaHessianCollector collector_;
  std::optional<DevicePair> sums_;
  std::optional<Workspace<T>> workspace_;             // of passes that are kept
  std::vector<std::pair<size_t, PassPair<T>>> kept_;  // with their first sequences
};

}  // namespace

MemoryPlan plan_input_pairs(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                            std::span<const Share> parts, int64_t most, bool keeps, uint64_t usable_bytes) {
  return fit_memory_plan("reading two models' inputs", "sequence", length, std::min(most, largest_part(parts)),
                         usable_bytes, [&](int64_t batch) {
                           return counted_allocations([&] {
                             with_cuda_type(numerics, [&]<typename T>(T*) {
                               allocate_input_pairs<T>(network, numeric_policy(numerics), length, parts, keeps, batch);
                             });
                           });
                         });
}

std::unique_ptr<PairReader> make_cuda_pair_reader(const Weights& original, const Weights& quantized,
                                                  const CudaPlace& place, Numerics numerics,
                                                  const TokenSequences& tokens, std::span<const Share> parts) {
  DeviceScope scope(place.ordinal);
  return with_cuda_type(numerics, [&]<typename T>(T*) -> std::unique_ptr<PairReader> {
    return std::make_unique<CudaPairReader<T>>(original, quantized, place, numerics, tokens, parts);
  });
}

}  // namespace thimble
