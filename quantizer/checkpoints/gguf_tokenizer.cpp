// gguf_tokenizer.cpp: see gguf_tokenizer.h.
#include "quantizer/checkpoints/gguf_tokenizer.h"

#include <fmt/format.h>

#include "eval/text/special_tokens.h"
#include "eval/tokenizers/tokenizer_json.h"
#include "quantizer/checkpoints/chat_template.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/formats/gguf_vocabulary.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/json.h"
#include "runtime/families/gguf_text_rules.h"

namespace thimble {
namespace {

constexpr float kPaddingScore = -10000;  // as llama.cpp's converter has it

// Without what does not change which pieces there are; a sequence of one step is that step.
Json plain_steps(const Json& step) {
  if (!step.is_object()) return step;
  if (const auto list = step.find("pretokenizers"); list != step.end() && list->is_array() && list->size() == 1)
    return plain_steps((*list)[0]);
  Json plain = Json::object();
  for (const auto& [key, value] : step.items()) {
    if (key == "trim_offsets" || (key == "invert" && value == false)) continue;
    if (value.is_array()) {
      for (const Json& inner : value) plain[key].push_back(plain_steps(inner));
    } else {
      plain[key] = value;
    }
  }
  return plain;
}

std::string pre_tokenizer_name(const Json& json, const std::string& path) {
  const Json steps = plain_steps(json.value("pre_tokenizer", Json()));
  std::string known;
  for (const GgufTextRules& pre : gguf_text_rules()) {
    if (plain_steps(parse_json(as_bytes_of(pre.pre_tokenizer), pre.name)) == steps) return pre.name;
    known += fmt::format("{}'{}'", known.empty() ? "" : ", ", pre.name);
  }
  throw UsageError(fmt::format(
      "{}: --to gguf: its pre_tokenizer is none of those that are known by llama.cpp's names, {}", path, known));
}

// llama.cpp changes no text before it is cut; composed characters, which NFC asks for, are what texts have.
void check_normalizer(const Json& json, const std::string& path) {
  const Json normalizer = json.value("normalizer", Json());
  if (!normalizer.is_null() && normalizer != Json({{"type", "NFC"}}))
    throw UsageError(path + ": --to gguf: llama.cpp has no normalizer of texts before byte-level encoding, this is " +
                     canonical_json(normalizer));
}

// Of transformers, beside the tokenizer; empty where there is none.
Json tokenizer_config(const std::string& path) {
  const std::string file = tokenizer_config_beside(path);
  if (file.empty()) return Json::object();
  const std::string text = read_text_file(file, kMaxTokenizerConfigBytes);
  const Json config = parse_json(as_bytes_of(text), file);
  return config.is_object() ? config : Json::object();
}

GgufVocabulary byte_level_vocabulary(const TokenizerJson& tokenizer, const Json& json, const std::string& path) {
  check_normalizer(json, path);
  GgufVocabulary vocabulary{kGgufByteLevelModel, pre_tokenizer_name(json, path)};
  for (const std::string& piece : tokenizer.pieces) vocabulary.tokens.push_back({piece});
  for (const AddedToken& added : tokenizer.added)
    vocabulary.tokens[static_cast<size_t>(added.id)].type =
        added.special ? GgufTokenType::kControl : GgufTokenType::kUserDefined;
  for (const BpeMerge& merge : tokenizer.bpe.merges)
    vocabulary.merges.push_back(tokenizer.pieces[static_cast<size_t>(merge.left)] + " " +
                                tokenizer.pieces[static_cast<size_t>(merge.right)]);
  vocabulary.bos = tokenizer.bos;
  vocabulary.adds_bos = tokenizer.bos.has_value();
  return vocabulary;
}

GgufVocabulary vocabulary_of(const std::string& path) {
  const MappedFile file(path);
  const bool is_gguf = looks_like_gguf(file.bytes());
  if (!is_gguf) refuse_other_kinds(file.bytes(), FileUse::kTokenizer, path);
  if (!is_gguf && !holds_tokenizer_json(file.bytes())) {
    GgufVocabulary vocabulary = sentencepiece_vocabulary(read_sentencepiece_pieces(file.bytes(), path), path);
    const Json adds_bos = tokenizer_config(path).value("add_bos_token", Json());
    if (adds_bos.is_boolean()) vocabulary.adds_bos = vocabulary.bos && adds_bos.get<bool>();
    return vocabulary;
  }
  const Json json = is_gguf ? gguf_tokenizer_json(read_gguf(file.bytes(), path), path) : parse_json(file.bytes(), path);
  const std::string made = is_gguf ? canonical_json(json) : "";
  const TokenizerJson tokenizer = parse_tokenizer_json(is_gguf ? as_bytes_of(made) : file.bytes(), path);
  return (tokenizer.steps.is_byte_level ? byte_level_vocabulary : marks_vocabulary)(tokenizer, json, path);
}

// What the tokenizer does not say, as config.json does.
void add_special_tokens(const GgufVocabulary& known, const Json& config, GgufKeys& keys) {
  auto id_of = [&](const char* key) -> std::optional<Token> {
    const Json value = config.value(key, Json());
    const Json first = value.is_array() && !value.empty() ? value[0] : value;
    if (!first.is_number_unsigned() || first.get<uint64_t>() >= known.tokens.size()) return std::nullopt;
    return first.get<Token>();
  };
  auto add = [&](const char* name, std::optional<Token> id) {
    if (id) keys.add(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint64_t>(*id));
  };
  auto first_of = [](std::optional<Token> id, std::optional<Token> otherwise) { return id ? id : otherwise; };
  add("bos", first_of(known.bos, id_of("bos_token_id")));
  add("eos", first_of(id_of("eos_token_id"), known.eos));
  add("unknown", known.unknown);
  add("padding", first_of(id_of("pad_token_id"), known.padding));
  keys.add("tokenizer.ggml.add_bos_token", known.adds_bos);
  if (known.adds_space) keys.add("tokenizer.ggml.add_space_prefix", *known.adds_space);
}

}  // namespace

void add_gguf_tokenizer(const std::string& path, int64_t vocabulary, const Json& config, GgufKeys& keys) {
  GgufVocabulary known = vocabulary_of(path);
  if (static_cast<int64_t>(known.tokens.size()) > vocabulary)
    throw UsageError(fmt::format("{}: --to gguf: {} tokens, the model has {}", path, known.tokens.size(), vocabulary));
  known.tokens.resize(static_cast<size_t>(vocabulary));
  std::vector<std::string> texts;
  std::vector<int32_t> types;
  std::vector<float> scores;
  for (const GgufToken& token : known.tokens) {
    const bool is_padding = token.text.empty();
    texts.push_back(is_padding ? fmt::format("[PAD{}]", texts.size()) : token.text);
    types.push_back(static_cast<int32_t>(is_padding ? GgufTokenType::kUnused : token.type));
    scores.push_back(is_padding ? kPaddingScore : token.score);
  }
  keys.add("tokenizer.ggml.model", known.model);
  keys.add("tokenizer.ggml.pre", known.pre);
  keys.add_texts("tokenizer.ggml.tokens", texts);
  if (known.adds_space)
    keys.add_fractions("tokenizer.ggml.scores", scores);
  else
    keys.add_texts("tokenizer.ggml.merges", known.merges);
  keys.add_numbers("tokenizer.ggml.token_type", types);
  add_special_tokens(known, config, keys);
  const Json beside = tokenizer_config(path);
  if (const Json adds_eos = beside.value("add_eos_token", Json()); adds_eos.is_boolean())
    keys.add("tokenizer.ggml.add_eos_token", adds_eos);
  if (const std::string chat = chat_template_of(path); !chat.empty()) keys.add("tokenizer.chat_template", chat);
}

}  // namespace thimble
