// cpu_language_model.cpp: one window after another through WindowScorer, sequences through generate.h.
#include "runtime/cpu_language_model.h"

#include <algorithm>
#include <cassert>

#include "runtime/window_scores.h"

namespace thimble {
namespace {

class CpuLanguageModel final : public LanguageModel {
 public:
  CpuLanguageModel(const Model& model, int64_t context)
      : model_(model), backend_(make_cpu_backend()), scorer_(model, *backend_, context) {}

  const ModelConfig& config() const override { return model_.config; }
  int64_t context() const override { return scorer_.context_length(); }
  // A window fills the machine's threads by itself.
  int64_t preferred_windows() const override { return 1; }
  int64_t preferred_sequences(const CalibrationOptions& options) const override {
    return calibration_batch(model_.config, options);
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
    assert(options.length == context());
    return thimble::generate_calibration(model_, *backend_, options, first, count, progress);
  }

  void generate_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(uint16_t)>& on_token) override {
    thimble::generate_text(model_, *backend_, context(), prompt, max_new_tokens, temperature, seed, on_token);
  }

 private:
  ConstMatrixView last_rows(std::span<const uint16_t> inputs, size_t count) {
    assert(count >= 1 && count <= inputs.size());
    return scorer_.log_probabilities(inputs, static_cast<int64_t>(inputs.size() - count));
  }

  const Model& model_;
  std::unique_ptr<Backend> backend_;
  WindowScorer scorer_;
};

}  // namespace

std::unique_ptr<LanguageModel> make_cpu_language_model(const Model& model, int64_t context) {
  return std::make_unique<CpuLanguageModel>(model, context);
}

}  // namespace thimble
