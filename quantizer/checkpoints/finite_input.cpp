// finite_input.cpp: see finite_input.h.
#include "quantizer/checkpoints/finite_input.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "quantizer/checkpoints/checkpoint.h"
#include "quantizer/checkpoints/model_source.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"
#include "runtime/ops/finite_check.h"

namespace thimble {
namespace {

[[noreturn]] void refuse_values(const NonFinite& found, const std::string& where) {
  throw Error(ExitCode::kBadInput,
              fmt::format("{} of {}, --check-finite allows finite values only", found.text(), where));
}

void require_finite_tensors(const TensorMap& tensors, const std::string& path) {
  if (std::optional<NonFinite> found = find_non_finite(tensors))
    throw FormatError(path, found->text() + ", --check-finite allows finite values only");
}

class FiniteScorer final : public Scorer {
 public:
  FiniteScorer(std::unique_ptr<Scorer> scorer, bool every_window)
      : scorer_(std::move(scorer)), every_window_(every_window) {}

  int64_t vocabulary() const override { return scorer_->vocabulary(); }
  int64_t context() const override { return scorer_->context(); }
  int64_t preferred_windows() const override { return scorer_->preferred_windows(); }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    if (every_window_)
      for (const ScoreWindow& window : windows) check(window.inputs);
    scorer_->score(windows, nll);
    size_t done = 0;
    for (const ScoreWindow& window : windows) {
      std::span<const float> own = nll.subspan(done, window.targets.size());
      auto bad = std::ranges::find_if_not(own, [](float score) { return std::isfinite(score); });
      if (bad != own.end()) {
        check(window.inputs);
        refuse_values({"the score", {bad - own.begin()}, *bad}, place(window.inputs));
      }
      done += own.size();
    }
  }

  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
    scorer_->log_probabilities(inputs, targets, first, out);
  }
  std::optional<NonFinite> find_non_finite_input(std::span<const Token> inputs) override {
    return scorer_->find_non_finite_input(inputs);
  }

 private:
  static std::string place(std::span<const Token> inputs) {
    return fmt::format("a window of {} that begins with token {}", counted(inputs.size(), "token"), inputs.front());
  }
  void check(std::span<const Token> inputs) {
    if (std::optional<NonFinite> found = scorer_->find_non_finite_input(inputs)) refuse_values(*found, place(inputs));
  }

  std::unique_ptr<Scorer> scorer_;
  bool every_window_;
};

}  // namespace

void require_finite_file(const std::string& path) {
  if (!is_artifact(path)) return require_finite_tensors(open_checkpoint(path).tensors(), path);
  QuantizedModel model = load_artifact(path);
  TensorMap stored;
  for (const QuantizedTensor& tensor : model.tensors)
    if (const auto* raw = std::get_if<RawTensor>(&tensor.data))
      stored[tensor.name] = {raw->dtype, tensor.shape, Bytes(raw->bytes)};
  require_finite_tensors(stored, path);
}

std::unique_ptr<Scorer> make_finite_scorer(std::unique_ptr<Scorer> scorer, bool every_window) {
  return std::make_unique<FiniteScorer>(std::move(scorer), every_window);
}

void require_finite_activations(Scorer& scorer, const TokenSequences& sequences, Progress& progress) {
  progress.begin("checking activations", sequences.count, "sequences");
  for (int64_t s = 0; s < sequences.count; ++s) {
    std::span<const Token> tokens = sequences.sequence(s);
    if (auto found = scorer.find_non_finite_input(tokens.first(tokens.size() - 1)))
      refuse_values(*found, fmt::format("calibration sequence {}", s));
    progress.advance(1);
  }
  progress.end();
}

}  // namespace thimble
