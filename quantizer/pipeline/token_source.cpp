// token_source.cpp: options and loading for token_source.h.
#include "quantizer/pipeline/token_source.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "eval/text/text_tokens.h"
#include "eval/text/token_shard.h"
#include "quantizer/checkpoints/checkpoint_files.h"
#include "quantizer/console/option_values.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr size_t kLeastTokens = 2;

std::string tokenizer_named(std::string& path) {
  std::error_code unreadable;
  if (!std::filesystem::is_directory(path, unreadable)) return "";
  const std::string found = tokenizer_in_folder(path);
  if (found.empty()) throw FormatError(path, "is a folder without " + tokenizer_file_names());
  path = found;
  return "";
}

}  // namespace

CLI::Option* add_tokenizer(CLI::App& command, std::string& path, const std::string& description) {
  return add_file(command, "--tokenizer", path, description)->transform(CLI::Validator(tokenizer_named, "", ""));
}

void TokenSource::add_to(CLI::App& command, Need need, const char* details) {
  CLI::Option* tokens = repeatable(
      command.add_option("--tokens", shards, "Token shard to score, or a glob pattern in quotes; may be repeated"));
  tokens->check(file_name())->type_name("FILE");
  add_file(command, "--text", text, "UTF-8 text file to tokenise and score instead")->excludes(tokens);
  add_tokenizer(command, tokenizer,
                fmt::format("tokenizer.json or SentencePiece model, or a folder with one; tells how many bytes each "
                            "token stands for ({}default: the one in the model's folder or GGUF file)",
                            need == Need::kRequired ? "required; " : ""));
  command.option_defaults()->group(details);
  add_count(
      command, "--context", context,
      fmt::format(
          "Tokens of context, at most (default: {}, or the positions that a model has or was trained on, if fewer)",
          kDefaultContext),
      1, 1 << 20);
  add_count(command, "--stride", stride,
            "Tokens by which each window moves on (default: by the model's family, 64 or 512, or a shorter context)", 1,
            1 << 20);
  add_count(command, "--max-targets", max_targets, "Score only the first targets; the result is then marked a subset",
            1, uint64_t{1} << 40);
  command.option_defaults()->group(kCommonGroup);
}

void TokenSource::find_tokenizer(std::span<const std::string> models, Need need) {
  if (!tokenizer.empty() || (need == Need::kOptional && !is_given())) return;
  tokenizer = tokenizer_of_models(models, need == Need::kRequired);
}

void TokenSource::check(bool uses_tokenizer) const {
  if (is_given()) {
    if (tokenizer.empty())
      throw UsageError("scoring needs the --tokenizer, to know how many bytes each token stands for");
    return;
  }
  for (const auto& [option, is_used] :
       {std::pair("--tokenizer", !tokenizer.empty() && !uses_tokenizer), std::pair("--context", context.has_value()),
        std::pair("--stride", stride.has_value()), std::pair("--max-targets", max_targets.has_value())})
    if (is_used) throw UsageError(std::string(option) + " is for scoring, which needs text: --tokens or --text");
}

void TokenSource::register_files(FileRoles& roles) const {
  for (const std::string& shard : expand_patterns(shards, kTokenShardFiles)) roles.input("the token shard", shard);
  roles.input("the --text", text);
  roles.input("the --tokenizer", tokenizer);
}

int64_t TokenSource::context_for(const Spec& spec, const std::string& path) const {
  const int64_t length = context.value_or(spec.usual_length(kDefaultContext));
  check_context(spec, length, path);
  if (stride && *stride > length)
    throw UsageError("--stride is " + std::to_string(*stride) + ", allowed is at most the --context, " +
                     std::to_string(length));
  return length;
}

EvaluationOptions TokenSource::evaluation_options(const Spec& spec, int64_t length) const {
  return {stride.value_or(std::min(spec.family->usual_stride(), length)), max_targets};
}

std::vector<Token> TokenSource::load(const Tokenizer& loaded, int64_t vocab_size) const {
  if (shards.empty() == text.empty()) throw UsageError("give either --tokens or --text");
  const std::vector<std::string> files = text.empty() ? expand_patterns(shards, kTokenShardFiles) : std::vector{text};
  std::vector<Token> tokens = text.empty() ? read_shards(files, vocab_size) : tokens_of_text_file(loaded, text);
  check_tokens(loaded, tokens, vocab_size, files.front());
  if (tokens.size() < kLeastTokens) {
    const std::string others = files.size() > 1 ? fmt::format(" in {} shards together", files.size()) : "";
    throw FormatError(files.front(), fmt::format("{}{}; scoring needs at least {}, since the first is only context",
                                                 tokens.empty() ? "no token" : "1 token", others, kLeastTokens));
  }
  return tokens;
}

std::optional<std::string> context_note(const Spec& spec, int64_t context, int64_t tokens) {
  const bool depends_on_context = std::ranges::any_of(spec.network->rotaries, [&](const RotaryRule& rule) {
    return rule.frequencies(context) != rule.frequencies(tokens);
  });
  if (context <= 2 * tokens || !depends_on_context) return std::nullopt;
  return fmt::format(
      "of a context of {} at most {} in use; this model scales its rotary positions by the whole context, so "
      "the score is not that of a context of {}",
      counted(context, "token"), tokens == 1 ? "1 is" : count_text(tokens) + " are", count_text(tokens));
}

}  // namespace thimble
