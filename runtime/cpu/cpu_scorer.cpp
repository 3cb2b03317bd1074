// cpu_scorer.cpp: see cpu_models.h.
#include "runtime/cpu/cpu_models.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/ops/logit_pieces.h"

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
      const ConstMatrixView hidden = last_rows(window.inputs, static_cast<int64_t>(window.targets.size()));
      for_each_logit_piece(hidden.rows, vocabulary(), [&](int64_t first, int64_t rows) {
        const ConstMatrixView found = log_probabilities_of(hidden.block_rows(first, rows));
        for (int64_t r = 0; r < rows; ++r) *next++ = -found.row(r)[window.targets[static_cast<size_t>(first + r)]];
      });
    }
  }

  using Scorer::log_probabilities;
  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
    const ConstMatrixView hidden = last_rows(inputs, targets);
    for_each_logit_piece(hidden.rows, vocabulary(), [&](int64_t begin, int64_t rows) {
      const int64_t from = std::max(begin, first), to = std::min(begin + rows, first + out.rows);
      if (from >= to) return;
      const ConstMatrixView found = log_probabilities_of(hidden.block_rows(begin, rows));
      copy_rows(found.block_rows(from - begin, to - from), out.block_rows(from - first, to - from));
    });
  }

  std::optional<NonFinite> find_non_finite_input(std::span<const Token> inputs) override {
    FiniteObserver observer;
    last_inputs_.clear();
    pass_.run(window_batch(inputs), nullptr, 0, &observer);
    return observer.found();
  }

 private:
  // The head's input after the last `count` inputs, valid until the next call. Of the same as last time it is still
  // there: who asks for the rows of a window some at a time does not wait for it each time.
  ConstMatrixView last_rows(std::span<const Token> inputs, int64_t count) {
    const auto length = static_cast<int64_t>(inputs.size());
    assert(count >= 1 && count <= length);
    if (last_hidden_.rows == count && std::ranges::equal(inputs, last_inputs_)) return last_hidden_;
    last_inputs_.clear();  // should the pass fail
    last_hidden_ = pass_.run(window_batch(inputs), nullptr, length - count);
    last_inputs_.assign(inputs.begin(), inputs.end());
    return last_hidden_;
  }
  // Of a piece of rows of it, valid until the next call.
  ConstMatrixView log_probabilities_of(ConstMatrixView hidden) {
    logits_.resize(hidden.rows, vocabulary());
    pass_.logits(hidden, logits_);
    for_each_row(logits_.rows(), logits_.cols(),
                 [&](int64_t r) { cpu_gradient_kernels().log_softmax(logits_.row(r), logits_.cols()); });
    return logits_;
  }

  const NumericPolicy policy_;
  const std::shared_ptr<const Weights> weights_;
  CpuPass pass_;
  Matrix logits_;                   // of a piece of rows
  std::vector<Token> last_inputs_;  // of the pass, and what it gave
  ConstMatrixView last_hidden_;
};

}  // namespace

std::unique_ptr<Scorer> make_cpu_scorer(std::shared_ptr<const Weights> weights, Numerics numerics, int64_t context) {
  return std::make_unique<CpuScorer>(std::move(weights), numerics, context);
}

}  // namespace thimble
