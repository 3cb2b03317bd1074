// gguf_vocabulary.cpp: vocabularies with marks for spaces. llama.cpp has no merges of them: it joins any two neighbours
// that together spell a token, those of the highest score first, and of equal ones the leftmost.
#include "quantizer/formats/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "eval/tokenizers/tokenizer_model.h"
#include "eval/tokenizers/utf8.h"
#include "quantizer/console/quoted_name.h"
#include "runtime/base/json.h"
#include "runtime/families/gguf_text_rules.h"

namespace thimble {
namespace {

constexpr const char* kAnyPre = "default";  // nothing cuts the texts of such models
constexpr const char* kAllBytes = "llama.cpp needs a token for each of the 256 bytes, which it does not have";

[[noreturn]] void refuse_vocabulary(const std::string& path, const std::string& what) {
  throw UsageError(path + ": --to gguf: " + what);
}

void check_length(const GgufToken& token, const std::string& path) {
  if (token.type == GgufTokenType::kNormal && token.text.size() > kMostMergedBytes)
    refuse_vocabulary(path, fmt::format("token {} has {} B, at most {} are written", quoted_name(token.text),
                                        token.text.size(), kMostMergedBytes));
}

// What stands in a text is looked for before spaces become marks.
void set_defined(GgufToken& token) {
  token.type = GgufTokenType::kUserDefined;
  token.text = with_spaces_for_marks(token.text);
}

// Does the file say nothing but that spaces become marks, one in front of a text or not?
bool only_marks_spaces(const Json& json) {
  const Json normalizer = json.value("normalizer", Json()), pre = json.value("pre_tokenizer", Json());
  const Json space = {{"String", " "}};
  bool replaces = false;
  auto is_known = [&](const Json& step) {
    const bool is_replace = step.value("type", "") == "Replace" && step.value("pattern", Json()) == space &&
                            step.value("content", "") == kSpaceMark;
    replaces |= is_replace;
    return is_replace || step.value("type", "") == "Prepend";
  };
  const bool is_list = normalizer.is_object() && normalizer.contains("normalizers");
  const Json steps = normalizer.is_null() ? Json::array()
                     : is_list            ? normalizer.at("normalizers")
                                          : Json::array({normalizer});
  if (!std::ranges::all_of(steps, is_known)) return false;
  if (pre.is_null()) return replaces;
  const std::string type = pre.value("type", "");
  // No space is left to split at.
  if (type == "Split") return replaces && pre.value("pattern", Json()) == space;
  return type == "Metaspace" && pre.value("split", Json()) == Json(false);
}

using Pair = std::pair<Token, Token>;

// Scores by the order in which merges first make tokens.
class MergeScores {
 public:
  MergeScores(const TokenizerJson& tokenizer, const std::string& path)
      : tokenizer_(tokenizer), path_(path), order_(tokenizer.pieces.size(), kNotMade) {
    Token last = -1;
    for (const BpeMerge& merge : tokenizer.bpe.merges) {
      pairs_.emplace(merge.left, merge.right);
      if (merge.made == last) continue;
      last = merge.made;
      int64_t& order = order_[static_cast<size_t>(last)];
      if (order != kNotMade)
        refuse_vocabulary(
            path, fmt::format("the merges that make {} lie apart, with others between them: llama.cpp has one rank "
                              "for all{}",
                              quoted_name(piece(last)), kWayOut));
      order = made_++;
    }
    for (size_t id = 0; id < tokenizer.bpe.texts.size(); ++id)
      if (!tokenizer.bpe.texts[id].empty()) ids_.emplace(tokenizer.bpe.texts[id], static_cast<Token>(id));
  }

  // Small whole numbers, which float32 has exactly; those that no merge makes are last.
  float score(Token token) const {
    const int64_t order = order_[static_cast<size_t>(token)];
    return -static_cast<float>(order == kNotMade ? made_ : order);
  }

  // Refuses a token that llama.cpp would make of two that the tokenizer does not merge.
  void check(std::string_view text) const {
    for (size_t at = decode_utf8(text).length; at < text.size(); at += decode_utf8(text.substr(at)).length) {
      const std::string_view left = text.substr(0, at), right = text.substr(at);
      const std::optional<Token> of_left = half(left), of_right = half(right);
      if (of_left && of_right && !pairs_.contains({*of_left, *of_right}))
        refuse_vocabulary(path_, fmt::format("llama.cpp merges {} and {}, which this tokenizer does not{}",
                                             quoted_name(left), quoted_name(right), kWayOut));
    }
  }

 private:
  static constexpr int64_t kNotMade = -1;
  static constexpr Token kNoToken = -1;
  static constexpr const char* kWayOut = "; give the SentencePiece model that it was made from, where there is one";

  const std::string& piece(Token token) const { return tokenizer_.pieces[static_cast<size_t>(token)]; }

  // What may be a neighbour: a character, known or not, and what merges make.
  std::optional<Token> half(std::string_view text) const {
    const auto found = ids_.find(text);
    if (decode_utf8(text).length == text.size()) return found == ids_.end() ? kNoToken : found->second;
    if (found == ids_.end() || order_[static_cast<size_t>(found->second)] == kNotMade) return std::nullopt;
    return found->second;
  }

  const TokenizerJson& tokenizer_;
  const std::string& path_;
  std::vector<int64_t> order_;  // (V)
  int64_t made_ = 0;
  std::set<Pair> pairs_;
  std::unordered_map<std::string_view, Token> ids_;
};

}  // namespace

GgufVocabulary sentencepiece_vocabulary(const SentencePieces& model, const std::string& path) {
  if (model.model_type != "bpe")
    refuse_vocabulary(path,
                      fmt::format("of SentencePiece models, byte-pair encodings are written, this one is of type '{}'",
                                  model.model_type));
  if (model.has_charsmap() || model.trims_spaces)
    refuse_vocabulary(path, fmt::format("llama.cpp changes no text before it is tokenized, this model {}",
                                        model.has_charsmap() ? "replaces characters" : "removes spaces"));
  GgufVocabulary vocabulary{kGgufSentencePieceModel, kAnyPre};
  size_t bytes = 0;
  for (const SentencePiece& piece : model.pieces) {
    GgufToken token{piece.text, piece.type, piece.score};
    const auto id = static_cast<Token>(vocabulary.tokens.size());
    if (token.type == GgufTokenType::kUserDefined) set_defined(token);
    if (token.type == GgufTokenType::kUnknown) vocabulary.unknown = id;
    if (token.type == GgufTokenType::kControl)
      for (const auto& [named, text] :
           {std::pair(&vocabulary.bos, &model.bos), {&vocabulary.eos, &model.eos}, {&vocabulary.padding, &model.pad}})
        if (piece.text == *text) *named = id;
    bytes += token.type == GgufTokenType::kByte;
    check_length(token, path);
    vocabulary.tokens.push_back(std::move(token));
  }
  if (bytes != 256) refuse_vocabulary(path, kAllBytes);
  vocabulary.adds_bos = vocabulary.bos.has_value();
  vocabulary.adds_space = model.adds_space;
  return vocabulary;
}

GgufVocabulary marks_vocabulary(const TokenizerJson& tokenizer, const Json& json, const std::string& path) {
  if (!only_marks_spaces(json))
    refuse_vocabulary(
        path, fmt::format("llama.cpp only makes marks of spaces before such a byte-pair encoding, this normalizer and "
                          "pre_tokenizer are {} and {}",
                          canonical_json(json.value("normalizer", Json())),
                          canonical_json(json.value("pre_tokenizer", Json()))));
  const BpeVocabulary& bpe = tokenizer.bpe;
  if (!std::ranges::all_of(bpe.fallback_bytes, [](const auto& id) { return id.has_value(); }))
    refuse_vocabulary(path, kAllBytes);
  if (bpe.ignores_merges) refuse_vocabulary(path, "llama.cpp does not ignore merges, as this tokenizer does");
  const MergeScores scores(tokenizer, path);
  GgufVocabulary vocabulary{kGgufSentencePieceModel, kAnyPre};
  for (size_t id = 0; id < tokenizer.pieces.size(); ++id)
    vocabulary.tokens.push_back({tokenizer.pieces[id], GgufTokenType::kNormal, scores.score(static_cast<Token>(id))});
  auto token = [&](Token id) -> GgufToken& { return vocabulary.tokens[static_cast<size_t>(id)]; };
  for (const std::optional<Token> id : bpe.fallback_bytes) token(*id).type = GgufTokenType::kByte;
  for (const AddedToken& added : tokenizer.added) {
    if (added.special)
      token(added.id).type = GgufTokenType::kControl;
    else
      set_defined(token(added.id));
  }
  vocabulary.unknown = bpe.unknown;
  if (bpe.unknown) token(*bpe.unknown).type = GgufTokenType::kUnknown;
  for (const GgufToken& made : vocabulary.tokens) {
    check_length(made, path);
    if (made.type == GgufTokenType::kNormal && !made.text.empty()) scores.check(made.text);
  }
  vocabulary.bos = tokenizer.bos;
  vocabulary.adds_bos = tokenizer.bos.has_value();
  vocabulary.adds_space = tokenizer.steps.puts_space_in_front;
  return vocabulary;
}

}  // namespace thimble
