// score_model.cpp: load, check the vocabulary and that ranks agree, evaluate.
#include "quantizer/pipeline/score_model.h"

#include "eval/score/model_scorer.h"
#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/ranks/ranked_language_model.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {

ScoredModel score_model(const std::string& path, const std::string& config, const TokenSource& source,
                        const Tokenizer& tokenizer, const ByteTable& bytes, const Device& device, Ranks& ranks,
                        Console& console, bool check_finite) {
  if (check_finite) require_finite_file(path);
  double load_seconds = 0;
  auto timed = [&](auto body) {
    const double start = seconds_since_start();
    auto result = body();
    load_seconds += seconds_since_start() - start;
    return result;
  };
  LoadedModel loaded = timed([&] { return load_model(path, config, device); });
  check_vocab_size(tokenizer, vocab_size(loaded.config), path);
  const int64_t context = source.context_for(loaded.config, path);
  std::vector<uint16_t> tokens = source.load(tokenizer, vocab_size(loaded.config));
  if (ranks.size() > 1) {
    ranks.require_equal(hex64(xxh3(MappedFile(path).bytes())), path + ": the hash of the file");
    ranks.require_equal(hex64(xxh3(std::as_bytes(std::span(tokens)))), "the hash of the tokens to score");
  }
  std::optional<MemoryPlan> memory;
  if (has_fused_forward(loaded.config, device)) {
    memory = plan_scoring(std::get<ModelConfig>(loaded.config), device.numerics, context,
                          cuda_windows_per_batch(device.ordinals[0], context), usable_memory(device));
    console.note(memory->text());
  }
  std::unique_ptr<LanguageModel> on_device = timed([&] { return make_language_model(loaded, device, context); });
  if (check_finite) on_device = make_finite_language_model(std::move(on_device), /*every_window=*/!device.is_cuda);
  std::unique_ptr<LanguageModel> model = make_ranked_language_model(std::move(on_device), ranks);
  ModelScorer scorer(*model);
  ScoredModel scored{path, loaded.file_bytes, {}, load_seconds, memory, seconds_since_start(), {}};
  scored.report = evaluate(scorer, tokens, bytes, source.evaluation_options(context), console.progress()).report;
  scored.note = context_note(loaded.config, context, scored.report.targets);
  scored.first_token_seconds += scored.report.first_batch_seconds;
  return scored;
}

double bits_per_byte(const AnyModel& model, const Device& device, const TokenSource& source, Console& console) {
  Tokenizer tokenizer = Tokenizer::load(source.tokenizer);
  const AnyConfig config = config_of(model);
  std::vector<uint16_t> tokens = source.load(tokenizer, vocab_size(config));
  const int64_t context = source.context_for(config, "the model");
  std::unique_ptr<LanguageModel> on_device = make_language_model(model, device, context);
  ModelScorer scorer(*on_device);
  return evaluate(scorer, tokens, ByteTable(tokenizer), source.evaluation_options(context), console.progress())
      .report.bits_per_byte();
}

}  // namespace thimble
