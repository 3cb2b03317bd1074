// token_source.cpp: options and loading for token_source.h.
#include "quantizer/token_source.h"

#include "eval/text_tokens.h"
#include "eval/token_shard.h"
#include "quantizer/commands.h"
#include "runtime/error.h"

namespace thimble {

void TokenSource::add_to(CLI::App& command, Need need, const char* details) {
  CLI::Option* tokens = repeatable(
      command.add_option("--tokens", shards, "Token shard to score, or a glob pattern in quotes; may be repeated"));
  tokens->type_name("FILE");
  command.add_option("--text", text, "UTF-8 text file to tokenise and score instead")
      ->type_name("FILE")
      ->excludes(tokens);
  CLI::Option* model =
      command.add_option("--tokenizer", tokenizer, "SentencePiece model; tells how many bytes each token stands for")
          ->type_name("FILE");
  if (need == Need::kRequired) model->required();
  command.option_defaults()->group(details);
  command
      .add_option("--context", context,
                  "Tokens of context, at most (default: " + std::to_string(kDefaultContext) +
                      ", or the positions of a model that has fewer)")
      ->transform(whole_number(1, 1 << 20))
      ->type_name("N");
  command.add_option("--stride", stride, "Tokens by which each window moves on")
      ->transform(whole_number(1, 1 << 20))
      ->type_name("N")
      ->capture_default_str();
  command.add_option("--max-targets", max_targets, "Score only the first targets; the result is then marked a subset")
      ->transform(whole_number(1, uint64_t{1} << 40))
      ->type_name("N");
  command.option_defaults()->group(kCommonGroup);
}

int64_t TokenSource::context_for(const AnyConfig& config, const std::string& path) const {
  const int64_t length = context.value_or(std::min(kDefaultContext, most_positions(config).value_or(kDefaultContext)));
  check_context(config, length, path);
  if (stride > length)
    throw UsageError("--stride is " + std::to_string(stride) + ", allowed is at most the --context, " +
                     std::to_string(length));
  return length;
}

std::vector<uint16_t> TokenSource::load(const Tokenizer& loaded, int64_t vocab_size) const {
  if (shards.empty() == text.empty()) throw UsageError("give either --tokens or --text");
  return text.empty() ? read_shards(shards, vocab_size) : tokens_of_text_file(loaded, text);
}

}  // namespace thimble
