// token_source.cpp: options and loading for token_source.h.
#include "quantizer/token_source.h"

#include <fmt/format.h>

#include "eval/text_tokens.h"
#include "eval/token_shard.h"
#include "quantizer/commands.h"
#include "runtime/error.h"

namespace thimble {
namespace {

constexpr size_t kLeastTokens = 2;

}  // namespace

void TokenSource::add_to(CLI::App& command, Need need) {
  CLI::Option* tokens =
      command.add_option("--tokens", shards, "Token shards: files or glob patterns")->type_name("FILE...");
  tokens->check(file_name());
  command.add_option("--text", text, "UTF-8 text file to tokenise and score instead")
      ->check(file_name())
      ->excludes(tokens);
  CLI::Option* model =
      command.add_option("--tokenizer", tokenizer, "SentencePiece model; tells how many bytes each token stands for");
  model->check(file_name());
  if (need == Need::kRequired) model->required();
  command
      .add_option("--context", context,
                  "Tokens of context, at most (default: " + std::to_string(kDefaultContext) +
                      ", or the positions of a model that has fewer)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command.add_option("--stride", stride, "Tokens by which each window moves on")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  command.add_option("--max-targets", max_targets, "Score only the first targets; the result is then marked a subset")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
}

void TokenSource::register_files(FileRoles& roles) const {
  roles.inputs("the token shard", expand_shard_patterns(shards));
  roles.input("the --text", text);
  roles.input("the --tokenizer", tokenizer);
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
  const std::vector<std::string> files = text.empty() ? expand_shard_patterns(shards) : std::vector{text};
  std::vector<uint16_t> tokens = text.empty() ? read_shards(files, vocab_size) : tokens_of_text_file(loaded, text);
  if (tokens.size() < kLeastTokens) {
    const std::string others = files.size() > 1 ? fmt::format(" in {} shards together", files.size()) : "";
    throw FormatError(files.front(), fmt::format("{}{}; scoring needs at least {}, since the first is only context",
                                                 tokens.empty() ? "no token" : "1 token", others, kLeastTokens));
  }
  return tokens;
}

}  // namespace thimble
