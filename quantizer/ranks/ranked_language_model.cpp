// ranked_language_model.cpp: computes this rank's share of a call and exchanges it for the others'.
#include "quantizer/ranks/ranked_language_model.h"

#include <algorithm>
#include <cassert>
#include <cstring>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// Batches of the model's liking that a rank scores between two exchanges: few, so that progress shows, but enough that
// ranks of unequal speed seldom wait.
constexpr int64_t kBatchesPerExchange = 4;

class RankedLanguageModel final : public LanguageModel {
 public:
  RankedLanguageModel(std::unique_ptr<LanguageModel> model, Ranks& ranks) : model_(std::move(model)), ranks_(ranks) {}

  int64_t vocab_size() const override { return model_->vocab_size(); }
  int64_t context() const override { return model_->context(); }
  int64_t preferred_windows() const override {
    return kBatchesPerExchange * ranks_.size() * model_->preferred_windows();
  }
  int64_t preferred_sequences(const CalibrationOptions& options) const override {
    return ranks_.size() * model_->preferred_sequences(options);
  }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    std::span<const ScoreWindow> mine = windows.subspan(share(windows.size()).begin, share(windows.size()).size());
    size_t count = 0;
    for (const ScoreWindow& window : mine) count += window.targets.size();
    std::vector<float> scores(count);
    if (!mine.empty()) model_->score(mine, scores);
    exchange<float>(scores, nll);
  }

  void log_probabilities(std::span<const uint16_t> inputs, MatrixView out) override {
    model_->log_probabilities(inputs, out);
  }

  std::optional<NonFinite> find_non_finite_input(std::span<const uint16_t> inputs) override {
    return model_->find_non_finite_input(inputs);
  }

  TokenSequences generate_calibration(const CalibrationOptions& options, int64_t first, int64_t count,
                                      Progress& progress) override {
    Share mine = share(static_cast<size_t>(count));
    auto own_count = static_cast<int64_t>(mine.size());
    TokenSequences own;
    if (own_count > 0)
      own = model_->generate_calibration(options, first + static_cast<int64_t>(mine.begin), own_count, progress);
    TokenSequences all{count, options.length, std::vector<uint16_t>(static_cast<size_t>(count * options.length))};
    exchange<uint16_t>(own.tokens, all.tokens);
    progress.advance((count - own_count) * options.length);  // by the other ranks
    return all;
  }

  void generate_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(uint16_t)>& on_token) override {
    model_->generate_text(prompt, max_new_tokens, temperature, seed, on_token);
  }

 private:
  Share share(size_t count) const {
    return share_of(count, static_cast<size_t>(ranks_.rank()), static_cast<size_t>(ranks_.size()));
  }

  // All ranks' values one after the other.
  template <typename T>
  void exchange(std::span<const T> mine, std::span<T> all) {
    std::byte* next = std::as_writable_bytes(all).data();
    for (const ByteVector& part : ranks_.all_gather(std::as_bytes(mine))) {
      assert(next + part.size() <= std::as_writable_bytes(all).data() + all.size_bytes());
      next = std::copy(part.begin(), part.end(), next);
    }
  }

  std::unique_ptr<LanguageModel> model_;
  Ranks& ranks_;
};

}  // namespace

std::unique_ptr<LanguageModel> make_ranked_language_model(std::unique_ptr<LanguageModel> model, Ranks& ranks) {
  if (ranks.size() == 1) return model;
  return std::make_unique<RankedLanguageModel>(std::move(model), ranks);
}

}  // namespace thimble
