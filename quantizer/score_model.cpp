// score_model.cpp: load, check the vocabulary and that ranks agree, evaluate.
#include "quantizer/score_model.h"

#include "eval/model_scorer.h"
#include "quantizer/model_source.h"
#include "quantizer/ranked_language_model.h"
#include "runtime/file.h"
#include "runtime/hash.h"

namespace thimble {

ScoredModel score_model(const std::string& path, const std::string& config, const TokenSource& source,
                        const Tokenizer& tokenizer, const ByteTable& bytes, const Device& device, Ranks& ranks,
                        Progress& progress) {
  LoadedModel loaded = load_model(path, config);
  check_vocab_size(tokenizer, loaded.model.config.vocab_size, path);
  std::vector<uint16_t> tokens = source.load(tokenizer, loaded.model.config.vocab_size);
  if (ranks.size() > 1) {
    ranks.require_equal(hex64(xxh3(MappedFile(path).bytes())), path + ": the hash of the file");
    ranks.require_equal(hex64(xxh3(std::as_bytes(std::span(tokens)))), "the hash of the tokens to score");
  }
  std::unique_ptr<LanguageModel> model =
      make_ranked_language_model(make_language_model(loaded.model, device, source.context), ranks);
  ModelScorer scorer(*model);
  EvaluationOptions options{source.stride, source.max_targets};
  return {path, loaded.file_bytes, evaluate(scorer, tokens, bytes, options, progress).report};
}

}  // namespace thimble
