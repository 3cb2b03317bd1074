// token_source.h: the options that say what text to score, shared by eval, audit and quantize.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "eval/tokenizer.h"

namespace thimble {

struct TokenSource {
  std::vector<std::string> shards;  // --tokens: files and glob patterns
  std::string text;                 // --text: a file to tokenise
  std::string tokenizer;            // --tokenizer: a SentencePiece model
  int64_t context = 2048, stride = 64;
  std::optional<int64_t> max_targets;

  enum class Need { kOptional, kRequired };
  void add_to(CLI::App& command, Need need);
  bool is_given() const { return !shards.empty() || !text.empty(); }
  // The token stream, below `vocab_size`. UsageError unless exactly one of --tokens and --text is given.
  std::vector<uint16_t> load(const Tokenizer& loaded, int64_t vocab_size) const;
};

}  // namespace thimble
