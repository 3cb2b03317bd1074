// cpu_scorer.cpp: see cpu_models.h.
#include "runtime/cpu/cpu_models.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_kernels.h"
#include "runtime/cpu/cpu_pass.h"

namespace thimble {
namespace {

class CpuScorer final : public Scorer {
 public:
  CpuScorer(std::shared_ptr<const Weights> weights, Numerics numerics, int64_t context)
      : policy_(numeric_policy(numerics)),
        weights_(rounded_weights(std::move(weights), policy_)),
        pass_(*weights_, context, policy_) {}

  int64_t vocabulary() const override { return pass_.network().vocabulary(); }
  int64_t context() const override { return pass_.context_length(); }
  // A window fills the processor by itself.
  int64_t preferred_windows() const override { return 1; }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    auto next = nll.begin();
    for (const ScoreWindow& window : windows) {
      const ConstMatrixView rows = last_rows(window.inputs, window.targets.size());
      for (int64_t r = 0; r < rows.rows; ++r) *next++ = -rows.row(r)[window.targets[static_cast<size_t>(r)]];
    }
  }

  void log_probabilities(std::span<const Token> inputs, MatrixView out) override {
    const ConstMatrixView rows = last_rows(inputs, static_cast<size_t>(out.rows));
    for (int64_t r = 0; r < out.rows; ++r) std::copy_n(rows.row(r), rows.cols, out.row(r));
  }

  std::optional<NonFinite> find_non_finite_input(std::span<const Token> inputs) override {
    FiniteObserver observer;
    pass_.run(window_batch(inputs), nullptr, 0, &observer);
    return observer.found();
  }

 private:
  // Log-probabilities after the last `count` inputs, valid until the next call.
  ConstMatrixView last_rows(std::span<const Token> inputs, size_t count) {
    assert(count >= 1 && count <= inputs.size());
    const ConstMatrixView hidden =
        pass_.run(window_batch(inputs), nullptr, static_cast<int64_t>(inputs.size() - count));
    logits_.resize(hidden.rows, vocabulary());
    pass_.logits(hidden, logits_);
    for_each_row(logits_.rows(), logits_.cols(),
                 [&](int64_t r) { cpu_kernels().log_softmax(logits_.row(r), logits_.cols()); });
    return logits_;
  }

  const NumericPolicy policy_;
  const std::shared_ptr<const Weights> weights_;
  CpuPass pass_;
  Matrix logits_;
};

}  // namespace

std::unique_ptr<Scorer> make_cpu_scorer(std::shared_ptr<const Weights> weights, Numerics numerics, int64_t context) {
  return std::make_unique<CpuScorer>(std::move(weights), numerics, context);
}

}  // namespace thimble
