// backend_language_model.cpp: one window after another through WindowScorer, sequences through generate.h.
#include "runtime/cpu/backend_language_model.h"

#include <algorithm>
#include <cassert>

#include "runtime/cpu/numeric_backend.h"
#include "runtime/cpu/window_scores.h"
#include "runtime/families/gpt2/gpt2_forward.h"

namespace thimble {
namespace {

template <typename AnyFamily>
class BackendLanguageModel final : public LanguageModel {
 public:
  template <typename Forward>
  static std::unique_ptr<LanguageModel> of(const AnyFamily& model, Numerics numerics, std::unique_ptr<Backend> exact,
                                           int64_t context) {
    const NumericPolicy policy = numeric_policy(numerics);
    std::unique_ptr<const AnyFamily> rounded;
    if (!policy.is_exact()) {
      auto copy = std::make_unique<AnyFamily>(model);
      round_weights(policy, *copy);
      rounded = std::move(copy);
    }
    const AnyFamily& used = rounded ? *rounded : model;
    std::unique_ptr<Backend> backend = make_numeric_backend(std::move(exact), policy, nvfp4_weights(used));
    auto forward = std::make_unique<Forward>(used, *backend, context);
    return std::make_unique<BackendLanguageModel>(std::move(rounded), std::move(backend), std::move(forward));
  }

  BackendLanguageModel(std::unique_ptr<const AnyFamily> rounded, std::unique_ptr<Backend> backend,
                       std::unique_ptr<CausalForward> forward)
      : rounded_(std::move(rounded)), backend_(std::move(backend)), scorer_(std::move(forward)) {}

  int64_t vocab_size() const override { return forward().vocab_size(); }
  int64_t context() const override { return forward().context_length(); }
  // A window fills the device by itself.
  int64_t preferred_windows() const override { return 1; }
  int64_t preferred_sequences(const CalibrationOptions& options) const override {
    return calibration_batch(forward().cache_shape(), options);
  }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    auto next = nll.begin();
    for (const ScoreWindow& window : windows) {
      ConstMatrixView rows = last_rows(window.inputs, window.targets.size());
      for (int64_t r = 0; r < rows.rows; ++r) *next++ = -rows.row(r)[window.targets[static_cast<size_t>(r)]];
    }
  }

  void log_probabilities(std::span<const uint16_t> inputs, MatrixView out) override {
    ConstMatrixView rows = last_rows(inputs, static_cast<size_t>(out.rows));
    for (int64_t r = 0; r < out.rows; ++r) std::copy(rows.row(r), rows.row(r) + rows.cols, out.row(r));
  }

  std::optional<NonFinite> find_non_finite_input(std::span<const uint16_t> inputs) override {
    FiniteObserver observer;
    scorer_.observe(inputs, observer);
    return observer.found();
  }

  TokenSequences generate_calibration(const CalibrationOptions& options, int64_t first, int64_t count,
                                      Progress& progress) override {
    return thimble::generate_calibration(scorer_.forward(), options, first, count, progress);
  }

  void generate_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(uint16_t)>& on_token) override {
    thimble::generate_text(scorer_.forward(), prompt, max_new_tokens, temperature, seed, on_token);
  }

 private:
  ConstMatrixView last_rows(std::span<const uint16_t> inputs, size_t count) {
    assert(count >= 1 && count <= inputs.size());
    return scorer_.log_probabilities(inputs, static_cast<int64_t>(inputs.size() - count));
  }

  const CausalForward& forward() const { return scorer_.forward(); }

  // Of the forward pass in scorer_; without a rounded model it has the caller's.
  std::unique_ptr<const AnyFamily> rounded_;
  std::unique_ptr<Backend> backend_;
  WindowScorer scorer_;
};

}  // namespace

std::unique_ptr<LanguageModel> make_backend_language_model(const Model& model, Numerics numerics,
                                                           std::unique_ptr<Backend> exact, int64_t context) {
  return BackendLanguageModel<Model>::of<ForwardPass>(model, numerics, std::move(exact), context);
}

std::unique_ptr<LanguageModel> make_backend_language_model(const Gpt2Model& model, Numerics numerics,
                                                           std::unique_ptr<Backend> exact, int64_t context) {
  return BackendLanguageModel<Gpt2Model>::of<Gpt2Forward>(model, numerics, std::move(exact), context);
}

std::unique_ptr<LanguageModel> make_cpu_language_model(const Model& model, int64_t context) {
  return make_backend_language_model(model, Numerics::kFp32, make_cpu_backend(), context);
}

std::unique_ptr<LanguageModel> make_cpu_language_model(const Gpt2Model& model, int64_t context) {
  return make_backend_language_model(model, Numerics::kFp32, make_cpu_backend(), context);
}

}  // namespace thimble
