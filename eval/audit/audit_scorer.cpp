// audit_scorer.cpp: changes tokens that a score must not depend on, and looks whether it moves.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "eval/audit/audit.h"
#include "runtime/base/count_text.h"
#include "runtime/base/random.h"
#include "runtime/tensor/matrix.h"

namespace thimble {
namespace {

// Uniform draws below a bound that are the same everywhere, unlike those of the standard distributions.
using Draw = std::function<int64_t(int64_t bound)>;

// The larger of two errors; NaN is the worst of all and is never lost again.
double worst_of(double a, double b) { return std::isnan(a) || std::isnan(b) ? std::nan("") : std::max(a, b); }

bool same_bits(float a, float b) { return std::memcmp(&a, &b, sizeof a) == 0; }

// Targets whose score moved although it must not, and the first of them.
struct Moved {
  int64_t compared = 0;
  int64_t moved = 0;
  std::string first;

  void add(bool is_same, const std::string& what) {
    ++compared;
    if (is_same) return;
    if (moved++ == 0) first = what;
  }
  AuditCheck check(const std::string& name, const std::string& subject) const {
    std::string detail = fmt::format("{} of {} {}", moved, compared, subject);
    if (moved > 0) detail += "; first: " + first;
    return {
        .name = name, .passed = compared > 0 && moved == 0, .detail = detail, .measured = static_cast<double>(moved)};
  }
};

class ScorerProbe {
 public:
  ScorerProbe(Scorer& scorer, std::span<const Token> tokens, const Evaluation& evaluation)
      : scorer_(scorer), tokens_(tokens), evaluation_(evaluation), vocab_size_(scorer.vocabulary()) {}

  // Probes at target `target` of window `index`. `shift` (1 .. V - 1) is added to tokens that are changed.
  void probe(int64_t index, int64_t target, int64_t shift) {
    const Window& window = evaluation_.windows[index];
    const std::span<const Window> batch = batch_of(index);
    const std::vector<Token> future_changed = changed(target + 2, static_cast<int64_t>(tokens_.size()), shift);
    const std::vector<Token> target_changed = changed(target + 1, target + 2, shift);

    const std::vector<float> scores = score(batch, tokens_);
    const std::vector<float> scores_future = score(batch, future_changed);
    const std::vector<float> scores_target = score(batch, target_changed);
    float target_score = 0, changed_score = 0;
    size_t at = 0;
    for (const Window& scored : batch) {
      for (int64_t t = scored.target_begin; t < scored.target_end; ++t, ++at) {
        determinism_.add(
            same_bits(scores[at], evaluation_.nll_nats[t]),
            fmt::format("target {}, {} nats reported, {} on scoring again", t, evaluation_.nll_nats[t], scores[at]));
        if (t <= target)
          compare_causality(t, scores[at], scores_future[at], fmt::format("the tokens after {}", target + 1));
        if (t < target) compare_causality(t, scores[at], scores_target[at], fmt::format("token {}", target + 1));
        if (t == target) target_score = scores[at], changed_score = scores_target[at];
      }
    }

    const std::vector<float> row = log_probabilities(window, target, tokens_);
    const std::vector<float> row_changed = log_probabilities(window, target, target_changed);
    for (int64_t v = 0; v < vocab_size_; ++v)
      independence_.add(same_bits(row[v], row_changed[v]),
                        fmt::format("ln p of token {} at target {}, {} before and {} after its value changed", v,
                                    target, row[v], row_changed[v]));
    normalisation_error_ = worst_of(normalisation_error_, std::abs(probability_sum(row) - 1));
    score_error_nats_ = worst_of(score_error_nats_, std::abs(double{target_score} + row[tokens_[target + 1]]));
    score_error_nats_ = worst_of(score_error_nats_, std::abs(double{changed_score} + row[target_changed[target + 1]]));
    ++probes_;
  }

  std::vector<AuditCheck> checks(const AuditOptions& options) const {
    return {determinism_.check("determinism", "scores moved when scored again"),
            causality_.check("causality", "scores moved when later tokens changed"),
            independence_.check("target independence", "log-probabilities moved when the target's own value changed"),
            {.name = "normalisation",
             .passed = probes_ > 0 && normalisation_error_ <= kNormalisationTolerance,
             .detail = fmt::format("probabilities sum to 1 within {:.3g} at {}, {:.3g} allowed", normalisation_error_,
                                   counted(probes_, "position"), kNormalisationTolerance),
             .measured = normalisation_error_},
            {.name = "score",
             .passed = probes_ > 0 && score_error_nats_ <= options.score_tolerance_nats,
             .detail = fmt::format("scores lie within {:.3g} nats of the distribution at {}, {:.3g} allowed",
                                   score_error_nats_, counted(probes_, "position"), options.score_tolerance_nats),
             .measured = score_error_nats_}};
  }

 private:
  std::span<const Window> batch_of(int64_t index) const {
    const int64_t batch_windows = std::max<int64_t>(1, scorer_.preferred_windows());
    const int64_t first = index / batch_windows * batch_windows;
    const auto count = static_cast<int64_t>(evaluation_.windows.size());
    return std::span(evaluation_.windows).subspan(first, std::min(batch_windows, count - first));
  }

  std::vector<Token> changed(int64_t begin, int64_t end, int64_t shift) const {
    std::vector<Token> tokens(tokens_.begin(), tokens_.end());
    for (int64_t i = begin; i < end; ++i) tokens[i] = static_cast<Token>((tokens[i] + shift) % vocab_size_);
    return tokens;
  }

  std::vector<float> score(std::span<const Window> batch, std::span<const Token> tokens) {
    int64_t targets = 0;
    for (const Window& window : batch) targets += window.target_count();
    std::vector<float> scores(targets);
    scorer_.score(score_windows(tokens, batch), scores);
    return scores;
  }

  std::vector<float> log_probabilities(const Window& window, int64_t target, std::span<const Token> tokens) {
    // As one of all rows that score() computes, so that the very numbers that are scored are looked at.
    std::vector<float> row(static_cast<size_t>(vocab_size_));
    scorer_.log_probabilities(score_window(tokens, window).inputs, window.target_count(), target - window.target_begin,
                              {row.data(), 1, vocab_size_});
    return row;
  }

  static double probability_sum(const std::vector<float>& row) {
    double sum = 0;
    for (float log_probability : row) sum += std::exp(double{log_probability});
    return sum;
  }

  void compare_causality(int64_t target, float before, float after, const std::string& change) {
    causality_.add(same_bits(before, after),
                   fmt::format("target {}, {} nats before and {} after {} changed", target, before, after, change));
  }

  Scorer& scorer_;
  std::span<const Token> tokens_;
  const Evaluation& evaluation_;
  int64_t vocab_size_;
  int64_t probes_ = 0;
  Moved determinism_, causality_, independence_;
  double normalisation_error_ = 0;
  double score_error_nats_ = 0;
};

struct Position {
  int64_t window;
  int64_t target;
};

// The stream's first and last target, the first of the second window, and `samples` random ones.
std::vector<Position> sample_positions(std::span<const Window> windows, int64_t samples, const Draw& draw) {
  const auto count = static_cast<int64_t>(windows.size());
  std::vector<Position> positions{{0, windows.front().target_begin}, {count - 1, windows.back().target_end - 1}};
  if (count > 1) positions.push_back({1, windows[1].target_begin});
  for (int64_t i = 0; i < samples; ++i) {
    const int64_t index = draw(count);
    positions.push_back({index, windows[index].target_begin + draw(windows[index].target_count())});
  }
  return positions;
}

}  // namespace

std::vector<AuditCheck> audit_scorer(Scorer& scorer, std::span<const Token> tokens, const Evaluation& evaluation,
                                     const AuditOptions& options, Progress& progress) {
  if (scorer.vocabulary() < 2) throw UsageError("a vocabulary of one token leaves nothing to audit");
  if (evaluation.windows.empty()) throw UsageError("an evaluation without windows leaves nothing to audit");
  constexpr uint64_t kStream = 0x6175646974;  // "audit"
  const Draw draw = [&options, draws = uint64_t{0}](int64_t bound) mutable {
    return static_cast<int64_t>(uniform_at(options.seed, kStream, draws++) * static_cast<double>(bound));
  };
  ScorerProbe probe(scorer, tokens, evaluation);
  const std::vector<Position> positions = sample_positions(evaluation.windows, options.samples, draw);
  progress.begin("audit", static_cast<int64_t>(positions.size()), "positions");
  for (const Position& position : positions) {
    probe.probe(position.window, position.target, 1 + draw(scorer.vocabulary() - 1));
    progress.advance(1);
  }
  progress.end();
  return probe.checks(options);
}

}  // namespace thimble
