// gguf_tokenizer.cpp: see gguf_tokenizer.h.
#include "quantizer/checkpoints/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "eval/text/tokenizer_json.h"
#include "runtime/base/file_kind.h"
#include "runtime/families/gguf_model.h"

namespace thimble {
namespace {

enum TokenType : int32_t { kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5 };

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
  for (const GgufPreTokenizer& pre : gguf_pre_tokenizers()) {
    if (plain_steps(parse_json(as_bytes_of(pre.json), pre.name)) == steps) return pre.name;
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
                     normalizer.dump());
}

// Of transformers: beside the tokenizer.
std::string chat_template_of(const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  constexpr uint64_t kMostBytes = 1 << 20;
  if (const std::string file = (folder / "chat_template.jinja").string(); file_exists(file))
    return read_text_file(file, kMostBytes);
  const std::string file = (folder / "tokenizer_config.json").string();
  if (!file_exists(file)) return "";
  const std::string text = read_text_file(file, 16 * kMostBytes);
  const Json config = parse_json(as_bytes_of(text), file);
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
  return found != config.end() && found->is_string() ? found->get<std::string>() : "";
}

void add_special_tokens(const TokenizerJson& tokenizer, const Json& config, int64_t vocabulary, GgufKeys& keys) {
  auto id_of = [&](const char* key) -> std::optional<Token> {
    const Json value = config.value(key, Json());
    const Json first = value.is_array() && !value.empty() ? value[0] : value;
    if (!first.is_number_unsigned() || first.get<uint64_t>() >= static_cast<uint64_t>(vocabulary)) return std::nullopt;
    return first.get<Token>();
  };
  const std::optional<Token> bos = tokenizer.bos ? tokenizer.bos : id_of("bos_token_id");
  for (const auto& [key, id] : {std::pair("bos_token_id", bos),
                                {"eos_token_id", id_of("eos_token_id")},
                                {"padding_token_id", id_of("pad_token_id")}})
    if (id) keys.add(std::string("tokenizer.ggml.") + key, static_cast<uint64_t>(*id));
  keys.add("tokenizer.ggml.add_bos_token", tokenizer.bos.has_value());
}

}  // namespace

void add_gguf_tokenizer(const std::string& path, int64_t vocabulary, const Json& config, GgufKeys& keys) {
  const MappedFile file(path);
  refuse_other_kinds(file.bytes(), FileUse::kTokenizer, path);
  if (!as_text(file.bytes()).starts_with('{'))
    throw UsageError(path + ": --to gguf: of tokenizers, a byte-level tokenizer.json is written, this is none");
  const TokenizerJson tokenizer = parse_tokenizer_json(file.bytes(), path);
  if (!tokenizer.steps.is_byte_level)
    throw UsageError(path + ": --to gguf: of tokenizers, byte-level ones are written, this one has space marks");
  const Json json = parse_json(file.bytes(), path);
  check_normalizer(json, path);
  const auto known = static_cast<int64_t>(tokenizer.pieces.size());
  if (known > vocabulary)
    throw UsageError(fmt::format("{}: --to gguf: {} tokens, the model has {}", path, known, vocabulary));
  std::vector<std::string> tokens = tokenizer.pieces;
  std::vector<int32_t> types(static_cast<size_t>(vocabulary), kNormal);
  for (const AddedToken& added : tokenizer.added)
    types[static_cast<size_t>(added.id)] = added.special ? kControl : kUserDefined;
  tokens.resize(static_cast<size_t>(vocabulary));
  for (size_t id = 0; id < tokens.size(); ++id)
    if (tokens[id].empty()) {
      tokens[id] = fmt::format("[PAD{}]", id);
      types[id] = kUnused;
    }
  std::vector<std::string> merges;
  for (const BpeMerge& merge : tokenizer.bpe.merges)
    merges.push_back(tokenizer.pieces[static_cast<size_t>(merge.left)] + " " +
                     tokenizer.pieces[static_cast<size_t>(merge.right)]);
  keys.add("tokenizer.ggml.model", kGgufByteLevelTokenizer);
  keys.add("tokenizer.ggml.pre", pre_tokenizer_name(json, path));
  keys.add_texts("tokenizer.ggml.tokens", tokens);
  keys.add_numbers("tokenizer.ggml.token_type", types);
  keys.add_texts("tokenizer.ggml.merges", merges);
  add_special_tokens(tokenizer, config, vocabulary, keys);
  if (const std::string chat = chat_template_of(path); !chat.empty()) keys.add("tokenizer.chat_template", chat);
}

}  // namespace thimble
