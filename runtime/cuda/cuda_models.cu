// cuda_models.cu: Scorer over CudaWindowBatches, Generator over CudaSequences.
#include "runtime/cuda/cuda_models.h"

#include <algorithm>
#include <cassert>

#include "runtime/cuda/cuda_finite.cuh"
#include "runtime/cuda/cuda_sequences.cuh"
#include "runtime/cuda/cuda_window_batches.cuh"

namespace thimble {
namespace {

template <typename T>
class CudaScorer final : public Scorer {
 public:
  CudaScorer(const Weights& weights, const CudaPlace& place, Numerics numerics, int64_t context)
      : network_(weights.network),
        ordinal_(place.ordinal),
        context_(context),
        planned_(plan_scoring(network_, numerics, context, cuda_windows_per_batch(place.ordinal, context),
                              usable_memory(place))
                     .batch) {
    DeviceScope scope(ordinal_);
    const NumericPolicy policy = numeric_policy(numerics);
    weights_ = std::make_unique<CudaNetworkWeights<T>>(weights, policy, cuda_fusion_options(policy, sizeof(T)));
    with_batches([](CudaWindowBatches<T>&) {});
  }
  ~CudaScorer() override {
    DeviceScope scope(ordinal_);
    batches_.reset();
    weights_.reset();
  }

  int64_t vocabulary() const override { return network_->vocabulary(); }
  int64_t context() const override { return context_; }
  // Several batches, so that one call keeps uploads and kernels overlapped.
  int64_t preferred_windows() const override { return 8 * cuda_windows_per_batch(ordinal_, context_); }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    with_batches([&](CudaWindowBatches<T>& batches) { batches.score(windows, nll); });
  }
  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
    with_batches([&](CudaWindowBatches<T>& batches) { batches.log_probabilities(inputs, targets, first, out); });
  }
  std::optional<NonFinite> find_non_finite_input(std::span<const Token> inputs) override {
    std::optional<NonFinite> found;
    with_batches([&](CudaWindowBatches<T>& batches) {
      CudaFiniteObserver<T> observer(static_cast<int64_t>(network_->linear_inputs().size()));
      const auto length = static_cast<int64_t>(inputs.size());
      batches.observe(inputs, 1, length, length, observer);
      found = observer.found();
    });
    return found;
  }

 private:
  // Calls the body with batches of as many windows as the memory allows.
  template <typename Body>
  void with_batches(const Body& body) {
    DeviceScope scope(ordinal_);
    with_smaller_batches(planned_, [&](int64_t windows) {
      if (batches_ && batches_->windows() != windows) batches_.reset();
      planned_ = windows;
      if (!batches_) batches_ = std::make_unique<CudaWindowBatches<T>>(*weights_, context_, windows);
      body(*batches_);
    });
  }

  std::shared_ptr<const Network> network_;
  int ordinal_;
  int64_t context_, planned_;  // windows in a batch
  std::unique_ptr<CudaNetworkWeights<T>> weights_;
  std::unique_ptr<CudaWindowBatches<T>> batches_;
};

template <typename T>
class CudaGenerator final : public Generator {
 public:
  CudaGenerator(const Weights& weights, const CudaPlace& place, Numerics numerics, int64_t context, int64_t sequences)
      : network_(weights.network),
        ordinal_(place.ordinal),
        numerics_(numerics),
        context_(context),
        most_sequences_(std::max<int64_t>(1, sequences)),
        usable_bytes_(usable_memory(place)) {
    planned_ = plan_generation(network_, numerics_, context_, most_sequences_, usable_bytes_).batch;
    DeviceScope scope(ordinal_);
    const NumericPolicy policy = numeric_policy(numerics);
    weights_ = std::make_unique<CudaNetworkWeights<T>>(weights, policy, cuda_fusion_options(policy, sizeof(T)));
  }
  ~CudaGenerator() override {
    DeviceScope scope(ordinal_);
    weights_.reset();
  }

  int64_t preferred_sequences(const CalibrationOptions& options) const override {
    return std::min(options.sequences, planned_);
  }

  TokenSequences calibration(const TextScript& script, int64_t first, int64_t count, Progress& progress) override {
    const CalibrationOptions& options = script.options;
    assert(options.length == context_);
    DeviceScope scope(ordinal_);
    TokenSequences all{count, options.length, {}};
    int64_t batch = std::min(planned_, count);
    for (int64_t done = 0; done < count; done += batch) {
      batch = std::min(batch, count - done);
      std::unique_ptr<CudaSequences<T>> sequences;
      batch = with_smaller_batches(batch, [&](int64_t size) {
        sequences = std::make_unique<CudaSequences<T>>(*weights_, context_, size);
        return size;
      });
      const std::vector<Token> tokens = sequences->generate(script, first + done, progress);
      all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end());
    }
    return all;
  }

  void text(std::span<const Token> prompt, const TextOptions& options,
            const std::function<bool(Token)>& on_token) override {
    assert(static_cast<int64_t>(prompt.size()) + options.most_new_tokens <= context_);
    DeviceScope scope(ordinal_);
    plan_text(network_, numerics_, context_, static_cast<int64_t>(prompt.size()), usable_bytes_);
    CudaSequences<T>(*weights_, context_, 1)
        .continue_text(prompt, options.most_new_tokens, options.temperature, options.seed, on_token);
  }

 private:
  std::shared_ptr<const Network> network_;
  int ordinal_;
  Numerics numerics_;
  int64_t context_, most_sequences_, planned_ = 1;
  uint64_t usable_bytes_;  // before the weights were there
  std::unique_ptr<CudaNetworkWeights<T>> weights_;
};

// What the weights take, and what allocate(weights) makes besides.
template <typename Allocate>
std::vector<MemoryUse> uses_of_model(const std::shared_ptr<const Network>& network, Numerics numerics,
                                     const Allocate& allocate) {
  const NumericPolicy policy = numeric_policy(numerics);
  return counted_allocations([&] {
    with_cuda_type(numerics, [&]<typename T>(T*) {
      allocate(CudaNetworkWeights<T>(network, policy, cuda_fusion_options(policy, sizeof(T))));
    });
  });
}

}  // namespace

MemoryPlan plan_scoring(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t context,
                        int64_t windows, uint64_t usable_bytes) {
  return fit_memory_plan("scoring", "window", context, windows, usable_bytes, [&](int64_t batch) {
    return uses_of_model(network, numerics, [&]<typename T>(const CudaNetworkWeights<T>& weights) {
      CudaWindowBatches<T>(weights, context, batch);
    });
  });
}

MemoryPlan plan_generation(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t length,
                           int64_t sequences, uint64_t usable_bytes) {
  return fit_memory_plan("generation", "sequence", length, sequences, usable_bytes, [&](int64_t batch) {
    return uses_of_model(network, numerics, [&]<typename T>(const CudaNetworkWeights<T>& weights) {
      CudaSequences<T>(weights, length, batch);
    });
  });
}

MemoryPlan plan_text(const std::shared_ptr<const Network>& network, Numerics numerics, int64_t context, int64_t prompt,
                     uint64_t usable_bytes) {
  return fit_memory_plan("generation", "text", context, 1, usable_bytes, [&](int64_t) {
    return uses_of_model(network, numerics, [&]<typename T>(const CudaNetworkWeights<T>& weights) {
      CudaSequences<T>(weights, context, 1);
      CudaPass<T>(weights, CudaSequences<T>::prompt_shape(context, prompt));
    });
  });
}

std::unique_ptr<Scorer> make_cuda_scorer(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                         Numerics numerics, int64_t context) {
  return with_cuda_type(numerics, [&]<typename T>(T*) -> std::unique_ptr<Scorer> {
    return std::make_unique<CudaScorer<T>>(*weights, place, numerics, context);
  });
}

std::unique_ptr<Generator> make_cuda_generator(std::shared_ptr<const Weights> weights, const CudaPlace& place,
                                               Numerics numerics, int64_t context, int64_t sequences) {
  return with_cuda_type(numerics, [&]<typename T>(T*) -> std::unique_ptr<Generator> {
    return std::make_unique<CudaGenerator<T>>(*weights, place, numerics, context, sequences);
  });
}

}  // namespace thimble
