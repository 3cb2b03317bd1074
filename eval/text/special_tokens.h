// special_tokens.h: the tokens that stand for no text: where a text begins, where it ends, and what text that a model
// writes by itself must never hold. Looked for in the tokenizer's file, in tokenizer_config.json beside it and in the
// model's config.json, which often say it only together.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/tokenizers/tokenizer.h"
#include "runtime/base/json.h"

namespace thimble {

constexpr const char* kTokenizerConfigFile = "tokenizer_config.json";
constexpr uint64_t kMaxTokenizerConfigBytes = 16 << 20;

struct SpecialTokens {
  // What a text begins with: the token that the tokenizer puts in front of one (Tokenizer::bos_id()), or else
  // "bos_token" of tokenizer_config.json (null there means none), or else "bos_token_id" of config.json.
  std::optional<Token> bos;
  // Is it the first of these? Others are named, and left out by those who tokenize a plain text.
  bool is_bos_in_front = false;
  // What a text ends with: "eos_token" of tokenizer_config.json and all of "eos_token_id" of config.json. Ascending;
  // empty where neither says it.
  std::vector<Token> eos;
  // Ascending: every token of the model's vocabulary that stands for no text (PieceKind::kBoundary), padding and unused
  // ones too, and the tokens above. Never to be drawn.
  std::vector<Token> all;
};

// `vocabulary` is the model's, `config` its config.json (an empty object where there is none), which `config_path`
// names in errors. FormatError for a token that is named and that the tokenizer or the model does not have; IoError
// when tokenizer_config.json is there and cannot be read.
SpecialTokens find_special_tokens(const Tokenizer& tokenizer, int64_t vocabulary, const Json& config,
                                  const std::string& config_path);

// The tokenizer_config.json beside that tokenizer; empty when there is none.
std::string tokenizer_config_beside(const std::string& tokenizer_path);

}  // namespace thimble
