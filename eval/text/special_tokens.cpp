// special_tokens.cpp: puts together what three files say.
#include "eval/text/special_tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/error.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

std::string shown_entry(const Json& value) {
  constexpr size_t kMostShown = 120;
  const std::string text = canonical_json(value);
  return text.size() > kMostShown ? text.substr(0, kMostShown) + "..." : text;
}

// A value of tokenizer_config.json: a text, or an object with the text as its "content", or null.
std::optional<Token> token_named(const Tokenizer& tokenizer, int64_t vocabulary, const Json& config, const char* key,
                                 const std::string& path) {
  const Json value = config.value(key, Json());
  if (value.is_null()) return std::nullopt;
  const Json content = value.is_object() ? value.value("content", Json()) : value;
  if (!content.is_string())
    throw FormatError(path, fmt::format("\"{}\" is {}, must be a text, an object with its content, or null", key,
                                        shown_entry(value)));
  const auto& text = content.get_ref<const std::string&>();
  for (Token token = 0; token < std::min(tokenizer.vocab_size(), vocabulary); ++token)
    if (!text.empty() && tokenizer.piece(token) == text) return token;
  throw FormatError(path, fmt::format("\"{}\" is {}, which is none of the model's tokens in {}", key,
                                      shown_entry(content), tokenizer.path()));
}

// A value of config.json: one id, or several, or null.
std::vector<Token> tokens_numbered(const Json& config, const char* key, int64_t vocabulary, const std::string& path) {
  const Json value = config.value(key, Json());
  if (value.is_null()) return {};
  constexpr size_t kMostIds = 64;
  const Json list = value.is_array() ? value : Json::array({value});
  std::vector<Token> tokens;
  for (const Json& id : list) {
    const bool is_token = id.is_number_integer() && id >= 0 && id < vocabulary && list.size() <= kMostIds;
    if (!is_token)
      throw FormatError(path, fmt::format("\"{}\" is {}, must be a token from 0 to {}, a list of at most {}, or null",
                                          key, shown_entry(value), vocabulary - 1, kMostIds));
    tokens.push_back(id.get<Token>());
  }
  return tokens;
}

void sort_once(std::vector<Token>& tokens) {
  std::ranges::sort(tokens);
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
}

}  // namespace

std::string tokenizer_config_beside(const std::string& tokenizer_path) {
  if (tokenizer_path.empty()) return "";
  const std::string path = (std::filesystem::path(tokenizer_path).parent_path() / kTokenizerConfigFile).string();
  return file_exists(path) ? path : "";
}

SpecialTokens find_special_tokens(const Tokenizer& tokenizer, int64_t vocabulary, const Json& config,
                                  const std::string& config_path) {
  SpecialTokens tokens;
  tokens.bos = tokenizer.bos_id();
  tokens.is_bos_in_front = tokens.bos.has_value();
  if (tokens.bos) check_tokens(tokenizer, {{*tokens.bos}}, vocabulary, tokenizer.path());
  tokens.eos = tokens_numbered(config, "eos_token_id", vocabulary, config_path);
  const std::vector<Token> numbered_bos = tokens_numbered(config, "bos_token_id", vocabulary, config_path);
  std::optional<Token> named_bos;
  if (!numbered_bos.empty()) named_bos = numbered_bos.front();

  if (const std::string path = tokenizer_config_beside(tokenizer.path()); !path.empty()) {
    const MappedFile file(path);
    if (file.bytes().size() > kMaxTokenizerConfigBytes)
      throw FormatError(path, fmt::format("{} B, a {} has at most {} B", file.bytes().size(), kTokenizerConfigFile,
                                          kMaxTokenizerConfigBytes));
    const Json said = parse_json(file.bytes(), path);
    if (!said.is_object()) throw FormatError(path, "is " + shown_entry(said) + ", must be an object");
    const std::optional<Token> named = token_named(tokenizer, vocabulary, said, "bos_token", path);
    if (said.contains("bos_token")) named_bos = named;
    if (auto eos = token_named(tokenizer, vocabulary, said, "eos_token", path)) tokens.eos.push_back(*eos);
  }
  if (!tokens.bos) tokens.bos = named_bos;
  sort_once(tokens.eos);

  tokens.all = tokens.eos;
  if (tokens.bos) tokens.all.push_back(*tokens.bos);
  for (Token token = 0; token < vocabulary; ++token)
    if (tokenizer.kind(token) == PieceKind::kBoundary) tokens.all.push_back(token);
  sort_once(tokens.all);
  return tokens;
}

}  // namespace thimble
