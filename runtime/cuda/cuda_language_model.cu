// cuda_language_model.cu: LanguageModel over CudaScorer and CudaGenerator, each made when it is first needed.
#include "runtime/cuda/cuda_language_model.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/memory_plan.h"
#include "runtime/base/random.h"
#include "runtime/cuda/cuda_finite.cuh"
#include "runtime/cuda/cuda_generator.cuh"
#include "runtime/cuda/cuda_scorer.cuh"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {
namespace {

template <typename T>
constexpr Numerics kNumerics = sizeof(T) == sizeof(float) ? Numerics::kFp32 : Numerics::kBf16;

// Of linear layers: of attention and its output, of the MLP and its output; and of two embeddings' projections.
constexpr int64_t kInputsPerLayer = 4, kInputsOfEmbeddings = 2;

template <typename T>
class CudaLanguageModel final : public LanguageModel {
 public:
  // `weights`: what a CudaModel is made of.
  template <typename... Weights>
  CudaLanguageModel(const CudaPlace& place, int64_t context, const Weights&... weights)
      : ordinal_(place.ordinal),
        context_(context),
        most_windows_(cuda_windows_per_batch(place.ordinal, context)),
        usable_bytes_(usable_memory(cuda_free_memory(place.ordinal), place.memory_limit_bytes)) {
    DeviceScope scope(ordinal_);
    model_ = std::make_unique<CudaModel<T>>(weights...);
  }
  ~CudaLanguageModel() override {
    DeviceScope scope(ordinal_);
    scorer_.reset();
    model_.reset();
  }

  int64_t vocab_size() const override { return config().vocab_size; }
  int64_t context() const override { return context_; }
  // Several batches, so that one call keeps uploads and kernels overlapped.
  int64_t preferred_windows() const override { return 8 * most_windows_; }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    with_scorer([&](CudaScorer<T>& scorer) { scorer.score(windows, nll); });
  }
  void log_probabilities(std::span<const uint16_t> inputs, MatrixView out) override {
    with_scorer([&](CudaScorer<T>& scorer) { scorer.log_probabilities(inputs, out); });
  }
  std::optional<NonFinite> find_non_finite_input(std::span<const uint16_t> inputs) override {
    std::optional<NonFinite> found;
    with_scorer([&](CudaScorer<T>& scorer) {
      CudaFiniteObserver<T> observer(kInputsPerLayer * config().num_layers + kInputsOfEmbeddings);
      auto length = static_cast<int64_t>(inputs.size());
      scorer.observe(inputs, 1, length, length, observer);
      found = observer.found();
    });
    return found;
  }
  TokenSequences generate_calibration(const CalibrationOptions& options, int64_t first, int64_t count,
                                      Progress& progress) override {
    assert(options.length == context_);
    DeviceScope scope(ordinal_);
    scorer_.reset();  // its memory is planned with
    TokenSequences all{count, options.length, {}};
    int64_t batch = plan_generation(config(), kNumerics<T>, context_, count, usable_bytes_).batch;
    for (int64_t done = 0; done < count; done += batch) {
      batch = std::min(batch, count - done);
      std::unique_ptr<CudaGenerator<T>> generator;
      batch = with_smaller_batches(batch, [&](int64_t sequences) {
        generator = std::make_unique<CudaGenerator<T>>(*model_, context_, sequences);
        return sequences;
      });
      std::vector<uint16_t> first_tokens;
      for (int64_t s = 0; s < batch; ++s)
        first_tokens.push_back(first_calibration_token(vocab_size(), options, first + done + s));
      std::vector<uint16_t> tokens = generator->generate(first_tokens, options.length, options.temperature,
                                                         options.seed, static_cast<uint64_t>(first + done), progress);
      all.tokens.insert(all.tokens.end(), tokens.begin(), tokens.end());
    }
    return all;
  }
  void generate_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(uint16_t)>& on_token) override {
    assert(static_cast<int64_t>(prompt.size()) + max_new_tokens <= context_);
    DeviceScope scope(ordinal_);
    scorer_.reset();
    plan_text(config(), kNumerics<T>, context_, static_cast<int64_t>(prompt.size()), usable_bytes_);
    CudaGenerator<T>(*model_, context_, 1).continue_text(prompt, max_new_tokens, temperature, seed, on_token);
  }

 private:
  const ModelConfig& config() const { return model_->config; }

  // Calls the body with a scorer of as many windows as the memory allows.
  template <typename Body>
  void with_scorer(const Body& body) {
    DeviceScope scope(ordinal_);
    int64_t planned = scorer_ ? scorer_->windows()
                              : plan_scoring(config(), kNumerics<T>, context_, most_windows_, usable_bytes_).batch;
    with_smaller_batches(planned, [&](int64_t windows) {
      if (scorer_ && scorer_->windows() != windows) scorer_.reset();
      if (!scorer_) scorer_ = std::make_unique<CudaScorer<T>>(*model_, context_, windows);
      body(*scorer_);
    });
  }

  int ordinal_;
  int64_t context_, most_windows_;  // in a batch
  uint64_t usable_bytes_;           // before the weights were there
  std::unique_ptr<CudaModel<T>> model_;
  std::unique_ptr<CudaScorer<T>> scorer_;
};

template <typename... Weights>
std::unique_ptr<LanguageModel> make(Numerics numerics, const CudaPlace& place, int64_t context,
                                    const Weights&... weights) {
  if (numerics == Numerics::kFp32) return std::make_unique<CudaLanguageModel<float>>(place, context, weights...);
  if (numerics != kNumerics<__nv_bfloat16>)
    throw Error(ExitCode::kInternal,
                std::string(numerics_name(numerics)) + ": fused attention cannot round what this mode rounds");
  return std::make_unique<CudaLanguageModel<__nv_bfloat16>>(place, context, weights...);
}

}  // namespace

std::unique_ptr<LanguageModel> make_cuda_language_model(const Model& model, const CudaPlace& place, Numerics numerics,
                                                        int64_t context) {
  return make(numerics, place, context, model);
}

std::unique_ptr<LanguageModel> make_cuda_language_model(const StoredModel& stored, const BlockFeed& feed,
                                                        const CudaPlace& place, Numerics numerics, int64_t context) {
  return make(numerics, place, context, stored, feed);
}

std::string cuda_arithmetic(int ordinal) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal));
  return properties.name;
}

}  // namespace thimble
