// score_model.cpp: load, check the vocabulary and that ranks agree, evaluate.
#include "quantizer/pipeline/score_model.h"

#include <algorithm>

#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/device/models.h"

namespace thimble {
namespace {

// Each call of score() is a piece of the work.
class KeptScorer final : public Scorer {
 public:
  KeptScorer(std::unique_ptr<Scorer> scorer, const SharedWork& work, uint64_t key)
      : scorer_(std::move(scorer)), work_(work), key_(key) {}

  int64_t vocabulary() const override { return scorer_->vocabulary(); }
  int64_t context() const override { return scorer_->context(); }
  // A multiple of what suits the scorer, for pieces that are worth a file.
  int64_t preferred_windows() const override {
    const int64_t own = std::max<int64_t>(1, scorer_->preferred_windows());
    return (kLeastWindows + own - 1) / own * own;
  }
  void score(std::span<const ScoreWindow> windows, std::span<float> nll) override {
    const PieceName name = {WorkKind::kScore, Hasher().add(key_).add(calls_++).add(uint64_t{nll.size()}).digest()};
    const auto scores = work_.result<std::vector<float>>(name, [&] {
      std::vector<float> computed(nll.size());
      scorer_->score(windows, computed);
      return computed;
    });
    std::ranges::copy(scores, nll.begin());
  }
  void log_probabilities(std::span<const Token> inputs, int64_t targets, int64_t first, MatrixView out) override {
    scorer_->log_probabilities(inputs, targets, first, out);
  }
  std::optional<NonFinite> find_non_finite_input(std::span<const Token> inputs) override {
    return scorer_->find_non_finite_input(inputs);
  }

 private:
  static constexpr int64_t kLeastWindows = 16;
  const std::unique_ptr<Scorer> scorer_;
  const SharedWork& work_;
  uint64_t key_, calls_ = 0;
};

}  // namespace

ReadyModel make_ready(LoadedModel loaded, const TokenSource& source, const Tokenizer& tokenizer, const Device& device,
                      Ranks& ranks, Console& console, bool check_finite) {
  const Spec& spec = loaded.model.spec;
  check_vocab_size(tokenizer, spec.vocabulary(), loaded.path);
  const int64_t context = source.context_for(spec, loaded.path);
  std::vector<Token> tokens = source.load(tokenizer, spec.vocabulary());
  if (ranks.size() > 1) {
    ranks.require_equal(hex64(model_hash(loaded.path)), loaded.path + ": the hash of the file");
    ranks.require_equal(hex64(xxh3(std::as_bytes(std::span(tokens)))), "the hash of the tokens to score");
  }
  std::optional<MemoryPlan> memory;
  if (device.is_cuda) {
    memory = plan_scoring(spec.network, device.numerics, context, cuda_windows_per_batch(device.ordinals[0], context),
                          usable_memory(device));
    console.note(memory->text());
  }
  const double start = seconds_since_start();
  std::unique_ptr<Scorer> scorer = make_scorer(loaded.model.weights, device, context, ranks);
  const double load_seconds = loaded.seconds + seconds_since_start() - start;
  if (check_finite) scorer = make_finite_scorer(std::move(scorer), /*every_window=*/!device.is_cuda);
  return {loaded.path,       loaded.file_bytes, spec,   std::move(tokens),
          std::move(scorer), load_seconds,      memory, seconds_since_start()};
}

ScoredModel score_model(const ReadyModel& model, const TokenSource& source, const ByteTable& bytes, Console& console) {
  const int64_t context = model.scorer->context();
  ScoredModel scored{model.path, model.file_bytes, {}, model.load_seconds, model.memory, model.ready_seconds, {}, {}};
  scored.report =
      evaluate(*model.scorer, model.tokens, bytes, source.evaluation_options(model.spec, context), console.progress())
          .report;
  scored.note = context_note(model.spec, context, scored.report.targets);
  scored.first_token_seconds += scored.report.first_batch_seconds;
  return scored;
}

ScoredModel score_model(LoadedModel loaded, const TokenSource& source, const Tokenizer& tokenizer,
                        const ByteTable& bytes, const Device& device, Ranks& ranks, Console& console) {
  return score_model(make_ready(std::move(loaded), source, tokenizer, device, ranks, console), source, bytes, console);
}

DivergenceReport divergence_of(const ReadyModel& first, const ReadyModel& second, const TokenSource& source,
                               const ByteTable& bytes, Console& console) {
  const int64_t context = first.scorer->context();
  const EvaluationOptions options = source.evaluation_options(first.spec, context);
  const auto available = static_cast<int64_t>(first.tokens.size()) - 1;
  const int64_t targets = std::min(available, options.max_targets.value_or(available));
  const std::vector<Window> windows = plan_windows(targets, context, options.stride);
  const Divergences found = divergences(*first.scorer, *second.scorer, first.tokens, windows, console.progress());
  return summarize(found, std::span(first.tokens).first(static_cast<size_t>(targets) + 1), bytes, options.stride);
}

uint64_t scoring_key(const TokenSource& source, const Spec& spec, std::span<const Token> tokens, int64_t context) {
  const EvaluationOptions options = source.evaluation_options(spec, context);
  Hasher hasher;
  hasher.add(std::as_bytes(tokens)).add(xxh3(MappedFile(source.tokenizer).bytes()));
  for (int64_t count : {context, options.stride, options.max_targets.value_or(0)})
    hasher.add(static_cast<uint64_t>(count));
  return hasher.digest();
}

double bits_per_byte(const RunnableModel& model, uint64_t key, const Device& device, const TokenSource& source,
                     const SharedWork& work, Console& console) {
  const Tokenizer tokenizer = load_tokenizer(source.tokenizer);
  const std::vector<Token> tokens = source.load(tokenizer, model.spec.vocabulary());
  const int64_t context = source.context_for(model.spec, "the model");
  Hasher hasher;
  hasher.add(std::string_view("scoring")).add(key).add(scoring_key(source, model.spec, tokens, context));
  hasher.add(static_cast<uint64_t>(device.numerics));
  const PieceName name = {WorkKind::kScore, hasher.digest()};
  return work.result<double>(name, [&] {
    KeptScorer scorer(make_scorer(model.weights, device, context, work.ranks()), work, name.key);
    return evaluate(scorer, tokens, ByteTable(tokenizer), source.evaluation_options(model.spec, context),
                    console.progress())
        .report.bits_per_byte();
  });
}

}  // namespace thimble
