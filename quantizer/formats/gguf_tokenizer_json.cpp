// gguf_tokenizer_json.cpp: see gguf_tokenizer_json.h.
#include "quantizer/formats/gguf_tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>
#include <unordered_map>

#include "eval/text/special_tokens.h"
#include "eval/tokenizers/utf8.h"
#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/gguf_vocabulary.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/families/gguf_text_rules.h"

namespace thimble {
namespace {

constexpr const char *kModelKey = "tokenizer.ggml.model", *kPreKey = "tokenizer.ggml.pre",
                     *kTokensKey = "tokenizer.ggml.tokens", *kTypesKey = "tokenizer.ggml.token_type",
                     *kMergesKey = "tokenizer.ggml.merges", *kScoresKey = "tokenizer.ggml.scores",
                     *kBosKey = "tokenizer.ggml.bos_token_id", *kAddBosKey = "tokenizer.ggml.add_bos_token",
                     *kAddSpaceKey = "tokenizer.ggml.add_space_prefix", *kChatTemplateKey = "tokenizer.chat_template";

// What tokenizer_config.json calls them.
constexpr std::pair<const char*, const char*> kSpecialKeys[] = {{kBosKey, "bos_token"},
                                                                {"tokenizer.ggml.eos_token_id", "eos_token"},
                                                                {"tokenizer.ggml.padding_token_id", "pad_token"},
                                                                {"tokenizer.ggml.unknown_token_id", "unk_token"}};

// As of a tokenizer.json. Known tokenizers have about two merges for a token.
constexpr uint64_t kMostArrayBytes = 64 << 20;
constexpr size_t kMostMergesPerToken = 16;

std::string text_at(const Json& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found != metadata.end() && found->is_string() ? found->get<std::string>() : "";
}

const GgufTextRules* find_text_rules(std::string_view name) {
  const auto known = gguf_text_rules();
  const auto found = std::ranges::find_if(known, [&](const GgufTextRules& pre) { return name == pre.name; });
  return found == known.end() ? nullptr : &*found;
}

// Why a tokenizer of this kind cannot be read; nullopt: it can.
std::optional<std::string> unknown_kind(const Json& metadata) {
  const std::string model = text_at(metadata, kModelKey);
  if (model.empty() || model == "none" || model == "no_vocab") return "holds no tokenizer";
  auto unknown = [](const char* key, const std::string& found, const std::string& known) {
    return fmt::format("its tokenizer cannot be read: key '{}' is {}, known are {}", key, quoted_name(found), known);
  };
  if (model == kGgufSentencePieceModel) return std::nullopt;
  if (model != kGgufByteLevelModel)
    return unknown(kModelKey, model, fmt::format("'{}' and '{}'", kGgufByteLevelModel, kGgufSentencePieceModel));
  const std::string pre = text_at(metadata, kPreKey);
  if (find_text_rules(pre)) return std::nullopt;
  std::string known;
  for (const GgufTextRules& one : gguf_text_rules())
    known += fmt::format("{}'{}'", known.empty() ? "" : ", ", one.name);
  return unknown(kPreKey, pre, known);
}

class Reader {
 public:
  Reader(const GgufFile& file, const std::string& path) : file_(file), path_(path) {}

  Json read() {
    if (const auto trouble = unknown_kind(file_.metadata))
      throw FormatError(path_, *trouble + ": give the model's with --tokenizer FILE");
    read_tokens();
    Json model = {{"type", "BPE"}, {"vocab", vocabulary()}};
    Json root = {{"version", "1.0"}};
    bool begins_text = true;
    if (text_at(file_.metadata, kModelKey) == kGgufByteLevelModel) {
      const GgufTextRules& pre = *find_text_rules(text_at(file_.metadata, kPreKey));
      root["pre_tokenizer"] = parse_json(as_bytes_of(pre.pre_tokenizer), pre.name);
      root["normalizer"] = parse_json(as_bytes_of(pre.normalizer), pre.name);
      root["decoder"] = {
          {"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}, {"use_regex", true}};
      model["ignore_merges"] = pre.ignores_merges;
      model["merges"] = texts_of(kMergesKey);
      begins_text = pre.usually_begins_text;
    } else {
      root["normalizer"] = space_marks();
      root["decoder"] = {{"type", "Sequence"}, {"decoders", space_decoders()}};
      model["byte_fallback"] = has(GgufTokenType::kByte);
      model["fuse_unk"] = true;
      if (const GgufToken* unknown = first(GgufTokenType::kUnknown)) model["unk_token"] = unknown->text;
      model["merges"] = merges_by_score();
    }
    const std::optional<Token> bos = flag(kAddBosKey, begins_text) ? token_at(kBosKey) : std::nullopt;
    root["added_tokens"] = added_tokens(bos);
    if (bos) {
      const std::string& text = tokens_[static_cast<size_t>(*bos)].text;
      const Json first = {{"SpecialToken", {{"id", text}, {"type_id", 0}}}};
      auto sequence = [](const char* name, int type) { return Json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
      root["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", Json::array({first, sequence("A", 0)})},
                                {"pair", Json::array({first, sequence("A", 0), sequence("B", 1)})},
                                {"special_tokens", {{text, {{"id", text}, {"ids", {*bos}}, {"tokens", {text}}}}}}};
    }
    root["model"] = std::move(model);
    return root;
  }

  // tokenizer_config.json: the texts of the tokens that begin, end and pad texts. After read().
  Json config() const {
    Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"}, {"clean_up_tokenization_spaces", false}};
    for (const auto& [key, name] : kSpecialKeys)
      if (const std::optional<Token> token = token_at(key)) config[name] = tokens_[static_cast<size_t>(*token)].text;
    return config;
  }

 private:
  const GgufArray& array(const char* key, GgufType type, std::optional<size_t> count) const {
    const auto found = file_.arrays.find(key);
    if (found == file_.arrays.end()) throw FormatError(path_, fmt::format("key '{}' is missing or no array", key));
    const GgufArray& array = found->second;
    if (array.type != type)
      throw FormatError(path_, fmt::format("key '{}' has elements of type {}, must be {}", key,
                                           static_cast<uint32_t>(array.type), static_cast<uint32_t>(type)));
    if (count && array.count != *count)
      throw FormatError(path_, fmt::format("key '{}' has {} elements, there are {} tokens", key, array.count, *count));
    if (array.elements.size() > kMostArrayBytes)
      throw FormatError(
          path_, fmt::format("key '{}' has {} B, at most {} are read", key, array.elements.size(), kMostArrayBytes));
    return array;
  }

  std::vector<std::string> texts_of(const char* key) const {
    const GgufArray& texts = array(key, GgufType::kText, std::nullopt);
    ByteCursor cursor(texts.elements, path_);
    std::vector<std::string> read;
    for (uint64_t i = 0; i < texts.count; ++i) {
      const std::string_view text = cursor.take_text(cursor.read<uint64_t>(key), key);
      if (first_invalid_utf8(text)) throw FormatError(path_, fmt::format("key '{}': text {} is not UTF-8", key, i));
      read.emplace_back(text);
    }
    return read;
  }

  void read_tokens() {
    std::vector<std::string> texts = texts_of(kTokensKey);
    if (texts.empty() || texts.size() > static_cast<size_t>(kMostTokens))
      throw FormatError(
          path_, fmt::format("key '{}' has {} texts, allowed are 1 to {}", kTokensKey, texts.size(), kMostTokens));
    for (std::string& text : texts) tokens_.push_back({std::move(text)});
    if (!file_.arrays.contains(kTypesKey)) return;
    ByteCursor cursor(array(kTypesKey, GgufType::kI32, tokens_.size()).elements, path_);
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const auto type = cursor.read<int32_t>(kTypesKey);
      if (type < static_cast<int32_t>(GgufTokenType::kNormal) || type > static_cast<int32_t>(GgufTokenType::kByte))
        throw FormatError(path_,
                          fmt::format("key '{}': token {} is of type {}, known are 1 to 6", kTypesKey, id, type));
      tokens_[id].type = static_cast<GgufTokenType>(type);
    }
  }

  const GgufToken* first(GgufTokenType type) const {
    const auto found = std::ranges::find(tokens_, type, &GgufToken::type);
    return found == tokens_.end() ? nullptr : &*found;
  }
  bool has(GgufTokenType type) const { return first(type) != nullptr; }

  bool flag(const char* key, bool otherwise) const {
    const auto found = file_.metadata.find(key);
    if (found == file_.metadata.end()) return otherwise;
    if (!found->is_boolean())
      throw FormatError(path_, fmt::format("key '{}' is {}, must be a truth value", key, found->dump().substr(0, 80)));
    return found->get<bool>();
  }

  std::optional<Token> token_at(const char* key) const {
    const auto found = file_.metadata.find(key);
    if (found == file_.metadata.end()) return std::nullopt;
    if (!found->is_number_integer() || *found < 0 || *found >= tokens_.size())
      throw FormatError(path_, fmt::format("key '{}' is {}, allowed are 0 to {}", key, found->dump().substr(0, 80),
                                           tokens_.size() - 1));
    return found->get<Token>();
  }

  // Tokens that merges make, or that bytes and unknown characters become.
  bool is_in_vocabulary(const GgufToken& token) const {
    return token.type == GgufTokenType::kNormal || token.type == GgufTokenType::kByte ||
           token.type == GgufTokenType::kUnknown;
  }

  Json vocabulary() const {
    Json texts = Json::object();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      if (!is_in_vocabulary(tokens_[id])) continue;
      const auto [entry, is_new] = texts.emplace(tokens_[id].text, id);
      if (!is_new)
        throw FormatError(path_, fmt::format("key '{}': tokens {} and {} are both {}", kTokensKey, entry->dump(), id,
                                             quoted_name(tokens_[id].text)));
    }
    return texts;
  }

  // Special ones stand for no text.
  Json added_tokens(std::optional<Token> bos) const {
    Json added = Json::array();
    for (size_t id = 0; id < tokens_.size(); ++id) {
      const GgufToken& token = tokens_[id];
      const bool is_bos = bos == static_cast<Token>(id), is_defined = token.type == GgufTokenType::kUserDefined;
      if (!is_bos && !is_defined && token.type != GgufTokenType::kControl && token.type != GgufTokenType::kUnknown)
        continue;
      added.push_back({{"id", id},
                       {"content", token.text},
                       {"special", is_bos || !is_defined},
                       {"normalized", false},
                       {"single_word", false},
                       {"lstrip", false},
                       {"rstrip", false}});
    }
    return added;
  }

  // Spaces become marks, with one in front of each stretch of text between added tokens.
  Json space_marks() const {
    Json steps = Json::array();
    if (flag(kAddSpaceKey, true)) steps.push_back({{"type", "Prepend"}, {"prepend", kSpaceMark}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpaceMark}});
    return {{"type", "Sequence"}, {"normalizers", steps}};
  }

  // Back: marks to spaces, bytes to characters, without the space in front of a text.
  Json space_decoders() const {
    Json steps = Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}},
                              {{"type", "ByteFallback"}},
                              {{"type", "Fuse"}}});
    if (flag(kAddSpaceKey, true)) steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
    return steps;
  }

  // Any two tokens that together spell a third merge, the third of the highest score first.
  Json merges_by_score() const {
    ByteCursor cursor(array(kScoresKey, GgufType::kF32, tokens_.size()).elements, path_);
    std::unordered_map<std::string_view, size_t> ids;
    std::vector<float> scores;
    for (size_t id = 0; id < tokens_.size(); ++id) {
      scores.push_back(std::bit_cast<float>(cursor.read<uint32_t>(kScoresKey)));
      if (!std::isfinite(scores.back()))
        throw FormatError(path_, fmt::format("key '{}': the score of token {} is not finite", kScoresKey, id));
      if (tokens_[id].type == GgufTokenType::kNormal) ids.emplace(tokens_[id].text, id);
    }
    struct Merge {
      size_t made, left, right;
    };
    std::vector<Merge> merges;
    for (size_t made = 0; made < tokens_.size(); ++made) {
      const std::string_view text = tokens_[made].text;
      if (tokens_[made].type != GgufTokenType::kNormal || text.empty()) continue;
      if (text.size() > kMostMergedBytes)
        throw FormatError(path_, fmt::format("key '{}': token {} has {} B, at most {} are read", kTokensKey, made,
                                             text.size(), kMostMergedBytes));
      for (size_t at = decode_utf8(text).length; at < text.size(); at += decode_utf8(text.substr(at)).length) {
        const auto left = ids.find(text.substr(0, at)), right = ids.find(text.substr(at));
        if (left != ids.end() && right != ids.end()) merges.push_back({made, left->second, right->second});
      }
      if (merges.size() > kMostMergesPerToken * tokens_.size())
        throw FormatError(path_, fmt::format("key '{}': more than {} pairs of tokens make a token for each of {}",
                                             kTokensKey, kMostMergesPerToken, tokens_.size()));
    }
    std::ranges::sort(merges, {}, [&](const Merge& merge) {
      return std::tuple(-scores[merge.made], merge.made, merge.left, merge.right);
    });
    Json pairs = Json::array();
    for (const Merge& merge : merges)
      pairs.push_back(Json::array({tokens_[merge.left].text, tokens_[merge.right].text}));
    return pairs;
  }

  const GgufFile& file_;
  const std::string& path_;
  std::vector<GgufToken> tokens_;
};

// Nothing of files of other kinds. Views end with `file`.
std::optional<GgufFile> gguf_at(const MappedFile& file) {
  if (!looks_like_gguf(file.bytes())) return std::nullopt;
  return read_gguf(file.bytes(), file.path());
}

}  // namespace

Json gguf_tokenizer_json(const GgufFile& file, const std::string& path) { return Reader(file, path).read(); }

Tokenizer gguf_tokenizer(const GgufFile& file, const std::string& path) {
  return {as_bytes_of(canonical_json(gguf_tokenizer_json(file, path))), path};
}

bool holds_gguf_tokenizer(const std::string& path) {
  const std::optional<GgufFile> file = gguf_at(MappedFile(path));
  return file && !unknown_kind(file->metadata);
}

std::optional<std::string> unknown_gguf_tokenizer(const std::string& path) {
  const std::optional<GgufFile> file = gguf_at(MappedFile(path));
  return file ? unknown_kind(file->metadata) : std::nullopt;
}

Tokenizer load_tokenizer(const std::string& path) {
  const MappedFile file(path);
  const std::optional<GgufFile> gguf = gguf_at(file);
  return gguf ? gguf_tokenizer(*gguf, path) : Tokenizer(file.bytes(), path);
}

std::map<std::string, std::string> gguf_tokenizer_files(const std::string& path) {
  const MappedFile mapped(path);
  const std::optional<GgufFile> file = gguf_at(mapped);
  if (!file || unknown_kind(file->metadata)) return {};
  Reader reader(*file, path);
  std::map<std::string, std::string> files;
  Json tokenizer = reader.read();
  // Hugging Face's library numbers added tokens anew unless the vocabulary has them.
  for (const Json& added : tokenizer.at("added_tokens"))
    tokenizer["model"]["vocab"].emplace(added.at("content").get<std::string>(), added.at("id"));
  files["tokenizer.json"] = canonical_json(tokenizer);
  files[kTokenizerConfigFile] = reader.config().dump(2) + "\n";
  if (const std::string text = text_at(file->metadata, kChatTemplateKey); !text.empty())
    files["chat_template.jinja"] = text;
  return files;
}

std::string gguf_chat_template(const std::string& path) {
  const std::optional<GgufFile> file = gguf_at(MappedFile(path));
  return file ? text_at(file->metadata, kChatTemplateKey) : "";
}

}  // namespace thimble
