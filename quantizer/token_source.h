// token_source.h: the options that say what text to score, shared by eval, audit and quantize.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/tokenizer.h"
#include "quantizer/file_roles.h"
#include "runtime/any_model.h"

namespace thimble {

constexpr int64_t kDefaultContext = 2048;

struct TokenSource {
  std::vector<std::string> shards;  // --tokens: files and glob patterns
  std::string text;                 // --text: a file to tokenise
  std::string tokenizer;            // --tokenizer: a SentencePiece model
  std::optional<int64_t> context;   // --context
  int64_t stride = 64;
  std::optional<int64_t> max_targets;

  enum class Need { kOptional, kRequired };
  void add_to(CLI::App& command, Need need);
  void register_files(FileRoles& roles) const;  // throws what is wrong with patterns of --tokens, as load() does
  bool is_given() const { return !shards.empty() || !text.empty(); }
  // The tokens of context for a model: as --context says, else kDefaultContext, or what the model of `path` has
  // positions for. A UsageError when that is too many for it, or below the stride.
  int64_t context_for(const AnyConfig& config, const std::string& path) const;
  // The token stream, below `vocab_size`. UsageError unless exactly one of --tokens and --text is given, FormatError
  // when it has no target to score.
  std::vector<uint16_t> load(const Tokenizer& loaded, int64_t vocab_size) const;
};

}  // namespace thimble
