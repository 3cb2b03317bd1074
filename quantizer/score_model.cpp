// score_model.cpp: load, check the vocabulary, evaluate.
#include "quantizer/score_model.h"

#include "eval/model_scorer.h"
#include "quantizer/model_source.h"

namespace thimble {

ScoredModel score_model(const std::string& path, const std::string& config, const TokenSource& source,
                        const Tokenizer& tokenizer, const ByteTable& bytes, const Device& device, Progress& progress) {
  LoadedModel loaded = load_model(path, config);
  check_vocab_size(tokenizer, loaded.model.config.vocab_size, path);
  std::vector<uint16_t> tokens = source.load(tokenizer, loaded.model.config.vocab_size);
  std::unique_ptr<LanguageModel> model = make_language_model(loaded.model, device, source.context);
  ModelScorer scorer(*model);
  EvaluationOptions options{source.stride, source.max_targets};
  return {path, loaded.file_bytes, evaluate(scorer, tokens, bytes, options, progress).report};
}

}  // namespace thimble
