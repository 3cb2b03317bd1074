// tokenizer_json.cpp: walks a tokenizer.json. Settings of callers (truncation, padding) and offsets do not matter here.
#include "eval/tokenizers/tokenizer_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "eval/tokenizers/bpe_tokenizer.h"
#include "eval/tokenizers/byte_alphabet.h"
#include "eval/tokenizers/json_step.h"
#include "eval/tokenizers/tokenizer_check.h"
#include "eval/tokenizers/tokenizer_model.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

using Ids = std::unordered_map<std::string_view, Token>;

class Reader {
 public:
  Reader(const Json& root, const std::string& path) : path_(path), root_(root, path, "tokenizer.json") {}

  TokenizerJson read() {
    for (const char* key : {"version", "truncation", "padding"}) root_.ignore(key);
    result_.steps = read_text_steps(root_.get("normalizer"), root_.get("pre_tokenizer"), path_);
    result_.added = read_added_tokens(root_.get("added_tokens"), path_);
    check_decoder(root_.get("decoder"));
    read_model();
    add_added_tokens();
    read_post_processor(root_.get("post_processor"));
    root_.finish();
    return std::move(result_);
  }

 private:
  void read_model() {
    JsonStep model(root_.get("model"), path_, "model");
    if (model.get("type").is_null() && !model.get("merges").is_array()) model.refuse("type", "BPE");
    model.choice("type", {"BPE"}, "BPE");
    if (!model.get("dropout").is_null() && model.get("dropout") != 0.0) model.refuse("dropout", "null, 0");
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (!model.get(key).is_null() && model.get(key) != "") model.refuse(key, "null, \"\"");
    BpeVocabulary& bpe = result_.bpe;
    bpe.symbols_are_bytes = result_.steps.is_byte_level;
    bpe.ignores_merges = model.flag("ignore_merges", false);
    bpe.fuses_unknown = model.flag("fuse_unk", false);
    read_vocabulary(model);
    read_merges(model);
    if (!model.get("unk_token").is_null()) bpe.unknown = id_of(model, "unk_token", model.text("unk_token"));
    if (model.flag("byte_fallback", false)) read_fallback(model);
    model.finish();
  }

  void read_vocabulary(JsonStep& model) {
    const Json& vocabulary = model.get("vocab");
    if (!vocabulary.is_object() || vocabulary.empty()) model.refuse("vocab", "an object of texts and their ids");
    int64_t size = 0;
    for (const auto& [text, id] : vocabulary.items()) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMostTokens))
        throw FormatError(path_, fmt::format("model vocab: '{}' has the id {}; allowed are 0 to {}", text.substr(0, 80),
                                             canonical_json(id).substr(0, 40), kMostTokens - 1));
      if (text.size() > kMaxPieceBytes)
        throw FormatError(path_, fmt::format("model vocab: token {} has {} B, at most {} allowed", canonical_json(id),
                                             text.size(), kMaxPieceBytes));
      size = std::max(size, id.get<int64_t>() + 1);
    }
    // Bounds what few ids can make us allocate.
    const size_t most = 2 * (vocabulary.size() + result_.added.size()) + 1024;
    if (static_cast<size_t>(size) > most)
      throw FormatError(path_, fmt::format("model vocab: ids up to {} for {} texts; more than half are missing",
                                           size - 1, vocabulary.size()));
    resize(static_cast<size_t>(size));
    for (const auto& [text, value] : vocabulary.items()) {
      const auto id = value.get<Token>();
      if (ids_with_text_[id])
        throw FormatError(path_, fmt::format("model vocab: the id {} is of two texts, '{}' and '{}'", id,
                                             result_.pieces[id].substr(0, 80), text.substr(0, 80)));
      ids_with_text_[id] = true;
      result_.pieces[id] = text;
      result_.bpe.texts[id] = result_.steps.is_byte_level ? bytes_spelled(text).value_or("") : text;
    }
    for (auto entry = vocabulary.begin(); entry != vocabulary.end(); ++entry)
      ids_.emplace(entry.key(), entry.value().get<Token>());
  }

  void resize(size_t size) {
    result_.pieces.resize(size);
    result_.bpe.texts.resize(size);
    ids_with_text_.resize(size);
  }

  Token id_of(const JsonStep& step, const std::string& key, const std::string& text) const {
    auto found = ids_.find(text);
    if (found == ids_.end()) step.refuse(key, "texts of the vocabulary");
    return found->second;
  }

  // A merge is "left right" or ["left", "right"].
  void read_merges(JsonStep& model) {
    const Json& merges = model.get("merges");
    if (!merges.is_array()) model.refuse("merges", "an array of pairs");
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      const Json& merge = merges[rank];
      std::string left, right;
      if (merge.is_string()) {
        const auto& text = merge.get_ref<const std::string&>();
        const size_t space = text.find(' ');
        if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
          left = text.substr(0, space);
          right = text.substr(space + 1);
        }
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      }
      auto fail = [&](const std::string& what) {
        throw FormatError(path_,
                          fmt::format("model merges {}: {} {}", rank, canonical_json(merge).substr(0, 120), what));
      };
      if (left.empty() || right.empty()) fail("is no pair of texts");
      const auto of_left = ids_.find(left), of_right = ids_.find(right);
      const std::string made = left + right;
      const auto of_made = ids_.find(made);
      if (of_left == ids_.end() || of_right == ids_.end() || of_made == ids_.end())
        fail("joins or makes a text that is not in the vocabulary");
      result_.bpe.merges.push_back({of_left->second, of_right->second, of_made->second});
    }
  }

  void read_fallback(const JsonStep& model) {
    if (result_.steps.is_byte_level) model.refuse("byte_fallback", "false beside a ByteLevel pre-tokenizer");
    for (size_t byte = 0; byte < 256; ++byte)
      if (auto found = ids_.find(fmt::format("<0x{:02X}>", byte)); found != ids_.end())
        result_.bpe.fallback_bytes[byte] = found->second;
  }

  // A token whose text is in the vocabulary has the id that it has there.
  void add_added_tokens() {
    size_t size = result_.pieces.size();
    const size_t most = 2 * (size + result_.added.size()) + 1024;
    for (const AddedToken& token : result_.added) {
      if (static_cast<size_t>(token.id) >= most)
        throw FormatError(path_, fmt::format("added_tokens: the id {} is far above the {} tokens there are", token.id,
                                             size + result_.added.size()));
      size = std::max(size, static_cast<size_t>(token.id) + 1);
    }
    resize(size);
    for (const AddedToken& token : result_.added) {
      auto known = ids_.find(token.content);
      if (known != ids_.end() ? known->second != token.id : bool{ids_with_text_[token.id]})
        throw FormatError(
            path_, fmt::format("added_tokens: '{}' has the id {}, the vocabulary says {}", token.content, token.id,
                               known != ids_.end() ? fmt::to_string(known->second)
                                                   : "that '" + result_.pieces[token.id] + "' has it"));
      result_.pieces[token.id] = token.content;
    }
  }

  // Decoding follows from the vocabulary (BpeTokenizer::decode); here only that the file does not mean something else.
  void check_decoder(const Json& value) {
    if (value.is_null()) return;
    JsonStep decoder(value, path_, "decoder");
    if (decoder.text("type") != "Sequence") return check_decoder_step(decoder);
    const Json& list = decoder.get("decoders");
    if (!list.is_array() || list.size() > 16) decoder.refuse("decoders", "an array of at most 16");
    decoder.finish();
    for (size_t i = 0; i < list.size(); ++i) {
      JsonStep step(list[i], path_, "decoder " + std::to_string(i));
      check_decoder_step(step);
    }
  }

  void check_decoder_step(JsonStep& step) {
    const std::string type =
        step.choice("type", {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip"}, "");
    if ((type == "ByteLevel") != result_.steps.is_byte_level && (type == "ByteLevel" || type == "ByteFallback"))
      step.refuse("type", result_.steps.is_byte_level ? "ByteLevel, as the pre_tokenizer"
                                                      : "others than ByteLevel, without such a pre_tokenizer");
    if (type == "Replace" && (step.get("pattern") != Json{{"String", kSpaceMark}} || step.get("content") != " "))
      step.refuse("pattern", "the mark U+2581 to a space");
    if (type == "Strip" && (step.get("content") != " " || step.get("start") != 1 || step.get("stop") != 0))
      step.refuse("start", "one space at the start");
    for (const char* key : {"pattern", "content", "start", "stop", "add_prefix_space", "trim_offsets", "use_regex",
                            "replacement", "str_rep", "prepend_scheme", "split"})
      step.ignore(key);
    step.finish();
  }

  void read_post_processor(const Json& value) {
    if (value.is_null()) return;
    JsonStep step(value, path_, "post_processor");
    const std::string type = step.choice("type", {"ByteLevel", "TemplateProcessing", "Sequence"}, "");
    if (type == "Sequence") {
      const Json& list = step.get("processors");
      if (!list.is_array()) step.refuse("processors", "an array");
      for (const Json& inner : list)
        if (!inner.is_object() || inner.value("type", "") != "Sequence") read_post_processor(inner);
    } else if (type == "TemplateProcessing") {
      read_template(step);
    }
  }

  // What stands before the text in the template of one text.
  void read_template(JsonStep& step) {
    const Json& single = step.get("single");
    if (!single.is_array()) step.refuse("single", "an array");
    for (const Json& part : single) {
      if (!part.is_object() || !part.contains("SpecialToken")) break;
      const Json& token = part["SpecialToken"];
      if (!token.is_object() || !token.contains("id") || !token["id"].is_string())
        step.refuse("single", "SpecialToken with an id, Sequence");
      const auto name = token["id"].get<std::string>();
      auto same = std::ranges::find(result_.added, name, &AddedToken::content);
      if (same == result_.added.end() || !same->special) step.refuse("single", "SpecialToken of a special added token");
      if (!result_.bos) result_.bos = same->id;
    }
  }

  std::string path_;
  JsonStep root_;
  TokenizerJson result_;
  Ids ids_;  // of the vocabulary; its texts are those of the JSON value
  std::vector<bool> ids_with_text_;
};

}  // namespace

bool holds_tokenizer_json(Bytes file) {
  const std::string_view text = as_text(file);
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

TokenizerJson parse_tokenizer_json(Bytes file, const std::string& path) {
  if (file.size() > kMaxTokenizerJsonBytes)
    throw FormatError(path,
                      fmt::format("{} B, a tokenizer.json has at most {} B", file.size(), kMaxTokenizerJsonBytes));
  return Reader(parse_json(file, path), path).read();
}

}  // namespace thimble
