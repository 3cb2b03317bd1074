// cuda_language_model.cu: LanguageModel over CudaScorer and CudaGenerator, each made when it is first needed.
#include "runtime/cuda_language_model.h"

#include <algorithm>
#include <cassert>

#include "runtime/cuda_generator.cuh"
#include "runtime/cuda_scorer.cuh"
#include "runtime/random.h"

namespace thimble {
namespace {

template <typename T>
class CudaLanguageModel final : public LanguageModel {
 public:
  CudaLanguageModel(const Model& model, int ordinal, int64_t context) : ordinal_(ordinal), context_(context) {
    DeviceScope scope(ordinal_);
    model_ = std::make_unique<CudaModel<T>>(model);
    windows_ = 8 * windows_per_batch(context);
  }
  ~CudaLanguageModel() override {
    DeviceScope scope(ordinal_);
    scorer_.reset();
    model_.reset();
  }

  const ModelConfig& config() const override { return model_->config; }
  int64_t context() const override { return context_; }
  // Several batches, so that one call keeps uploads and kernels overlapped.
  int64_t preferred_windows() const override { return windows_; }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    DeviceScope scope(ordinal_);
    scorer().score(windows, nll);
  }
  void log_probabilities(std::span<const uint16_t> inputs, MatrixView out) override {
    DeviceScope scope(ordinal_);
    scorer().log_probabilities(inputs, out);
  }
  TokenSequences generate_calibration(const CalibrationOptions& options, int64_t first, int64_t count,
                                      Progress& progress) override {
    assert(options.length == context_);
    DeviceScope scope(ordinal_);
    std::vector<uint16_t> first_tokens;
    for (int64_t s = 0; s < count; ++s) first_tokens.push_back(first_calibration_token(config(), options, first + s));
    CudaGenerator<T> generator(*model_, context_, count);
    return {count, options.length,
            generator.generate(first_tokens, options.length, options.temperature, options.seed,
                               static_cast<uint64_t>(first), progress)};
  }
  void generate_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(uint16_t)>& on_token) override {
    assert(static_cast<int64_t>(prompt.size()) + max_new_tokens <= context_);
    DeviceScope scope(ordinal_);
    CudaGenerator<T>(*model_, context_, 1).continue_text(prompt, max_new_tokens, temperature, seed, on_token);
  }

 private:
  CudaScorer<T>& scorer() {
    if (!scorer_) scorer_ = std::make_unique<CudaScorer<T>>(*model_, context_);
    return *scorer_;
  }

  int ordinal_;
  int64_t context_, windows_;
  std::unique_ptr<CudaModel<T>> model_;
  std::unique_ptr<CudaScorer<T>> scorer_;
};

}  // namespace

std::unique_ptr<LanguageModel> make_cuda_language_model(const Model& model, int ordinal, Numerics numerics,
                                                        int64_t context) {
  if (numerics == Numerics::kFp32) return std::make_unique<CudaLanguageModel<float>>(model, ordinal, context);
  return std::make_unique<CudaLanguageModel<__nv_bfloat16>>(model, ordinal, context);
}

std::string cuda_arithmetic(int ordinal) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal));
  return properties.name;
}

}  // namespace thimble
