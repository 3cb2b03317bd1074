// score_model.cpp: load, check the vocabulary and that ranks agree, evaluate.
#include "quantizer/pipeline/score_model.h"

#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/model_source.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"
#include "runtime/cuda/cuda_memory.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/device/models.h"

namespace thimble {

ScoredModel score_model(const std::function<LoadedModel()>& load, const TokenSource& source, const Tokenizer& tokenizer,
                        const ByteTable& bytes, const Device& device, Ranks& ranks, Console& console,
                        bool check_finite) {
  double load_seconds = 0;
  auto timed = [&](auto body) {
    const double start = seconds_since_start();
    auto result = body();
    load_seconds += seconds_since_start() - start;
    return result;
  };
  const LoadedModel loaded = timed(load);
  const Spec& spec = loaded.model.spec;
  check_vocab_size(tokenizer, spec.vocabulary(), loaded.path);
  const int64_t context = source.context_for(spec, loaded.path);
  const std::vector<Token> tokens = source.load(tokenizer, spec.vocabulary());
  if (ranks.size() > 1) {
    ranks.require_equal(hex64(xxh3(MappedFile(loaded.path).bytes())), loaded.path + ": the hash of the file");
    ranks.require_equal(hex64(xxh3(std::as_bytes(std::span(tokens)))), "the hash of the tokens to score");
  }
  std::optional<MemoryPlan> memory;
  if (device.is_cuda) {
    memory = plan_scoring(*spec.network, device.numerics, context, cuda_windows_per_batch(device.ordinals[0], context),
                          usable_memory(device));
    console.note(memory->text());
  }
  std::unique_ptr<Scorer> scorer = timed([&] { return make_scorer(loaded.model.weights, device, context, ranks); });
  if (check_finite) scorer = make_finite_scorer(std::move(scorer), /*every_window=*/!device.is_cuda);
  ScoredModel scored{loaded.path, loaded.file_bytes, {}, load_seconds, memory, seconds_since_start(), {}};
  scored.report = evaluate(*scorer, tokens, bytes, source.evaluation_options(context), console.progress()).report;
  scored.note = context_note(spec, context, scored.report.targets);
  scored.first_token_seconds += scored.report.first_batch_seconds;
  return scored;
}

double bits_per_byte(const RunnableModel& model, const Device& device, const TokenSource& source, Console& console) {
  const Tokenizer tokenizer = Tokenizer::load(source.tokenizer);
  const std::vector<Token> tokens = source.load(tokenizer, model.spec.vocabulary());
  const int64_t context = source.context_for(model.spec, "the model");
  const std::unique_ptr<Scorer> scorer = make_scorer(model.weights, device, context);
  return evaluate(*scorer, tokens, ByteTable(tokenizer), source.evaluation_options(context), console.progress())
      .report.bits_per_byte();
}

}  // namespace thimble
