// split_language_model.cpp: cuts each call into contiguous shares, one thread per device.
#include "runtime/device/split_language_model.h"

#include <algorithm>
#include <cassert>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

size_t target_count(std::span<const ScoreWindow> windows) {
  size_t count = 0;
  for (const ScoreWindow& window : windows) count += window.targets.size();
  return count;
}

class SplitLanguageModel final : public LanguageModel {
 public:
  explicit SplitLanguageModel(std::vector<std::unique_ptr<LanguageModel>> parts) : parts_(std::move(parts)) {
    assert(!parts_.empty());
  }

  int64_t vocab_size() const override { return parts_[0]->vocab_size(); }
  int64_t context() const override { return parts_[0]->context(); }

  int64_t preferred_windows() const override {
    int64_t sum = 0;
    for (const auto& part : parts_) sum += part->preferred_windows();
    return sum;
  }
  int64_t preferred_sequences(const CalibrationOptions& options) const override {
    int64_t sum = 0;
    for (const auto& part : parts_) sum += part->preferred_sequences(options);
    return sum;
  }

  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    for_each_share(windows.size(), [&](LanguageModel& part, size_t begin, size_t end) {
      std::span<const ScoreWindow> share = windows.subspan(begin, end - begin);
      part.score(share, nll.subspan(target_count(windows.first(begin)), target_count(share)));
    });
  }

  void log_probabilities(std::span<const uint16_t> inputs, MatrixView out) override {
    parts_[0]->log_probabilities(inputs, out);
  }

  std::optional<NonFinite> find_non_finite_input(std::span<const uint16_t> inputs) override {
    return parts_[0]->find_non_finite_input(inputs);
  }

  TokenSequences generate_calibration(const CalibrationOptions& options, int64_t first, int64_t count,
                                      Progress& progress) override {
    TokenSequences all{count, options.length, std::vector<uint16_t>(static_cast<size_t>(count * options.length))};
    for_each_share(static_cast<size_t>(count), [&](LanguageModel& part, size_t begin, size_t end) {
      TokenSequences share = part.generate_calibration(options, first + static_cast<int64_t>(begin),
                                                       static_cast<int64_t>(end - begin), progress);
      std::ranges::copy(share.tokens, all.tokens.begin() + static_cast<int64_t>(begin) * options.length);
    });
    return all;
  }

  void generate_text(std::span<const uint16_t> prompt, int64_t max_new_tokens, double temperature, uint64_t seed,
                     const std::function<bool(uint16_t)>& on_token) override {
    parts_[0]->generate_text(prompt, max_new_tokens, temperature, seed, on_token);
  }

 private:
  // body(part, begin, end) for the non-empty shares of [0, count).
  void for_each_share(size_t count, const std::function<void(LanguageModel&, size_t, size_t)>& body) {
    run_in_threads(parts_.size(), [&](size_t i) {
      Share share = share_of(count, i, parts_.size());
      if (share.size() > 0) body(*parts_[i], share.begin, share.end);
    });
  }

  std::vector<std::unique_ptr<LanguageModel>> parts_;
};

}  // namespace

std::unique_ptr<LanguageModel> make_split_language_model(std::vector<std::unique_ptr<LanguageModel>> parts) {
  if (parts.size() == 1) return std::move(parts[0]);
  return std::make_unique<SplitLanguageModel>(std::move(parts));
}

}  // namespace thimble
