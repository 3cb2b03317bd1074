// bpe_tokenizer.cpp: added tokens, normalizers, pre-tokenizers and merges, in the order of `tokenizers`.
#include "eval/tokenizers/bpe_tokenizer.h"

#include <algorithm>

#include "eval/tokenizers/tokenizer_json.h"
#include "eval/tokenizers/utf8.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr size_t kMostTextBytes = size_t{1} << 30;  // of one document

// What models without BOS see between documents.
constexpr std::string_view kSeparators[] = {"<|endoftext|>", "<|end_of_text|>", "<s>", "<bos>", "</s>"};

// `bytes` with each byte that begins no character as U+FFFD.
std::string as_utf8(std::string_view bytes) {
  std::string text;
  for (auto at = first_invalid_utf8(bytes); at; at = first_invalid_utf8(bytes)) {
    text.append(bytes.substr(0, *at)).append(kReplacementCharacter);
    bytes.remove_prefix(*at + 1);
  }
  return text.append(bytes);
}

std::vector<AddedTokenFinder::Needle> needles_of(const TokenizerJson& json, bool is_normalized) {
  std::vector<AddedTokenFinder::Needle> needles;
  size_t bytes = 0;
  for (const AddedToken& token : json.added) bytes += token.content.size();
  const MatchTime time(bytes);
  for (const AddedToken& token : json.added)
    if (token.normalized == is_normalized)
      needles.push_back({is_normalized ? normalized(json.steps, token.content, time) : token.content, token});
  return needles;
}

class BpeTokenizer : public TokenizerModel {
 public:
  BpeTokenizer(TokenizerJson json, const std::string& path)
      : path_(path),
        steps_(json.steps),
        pieces_(json.pieces),
        bos_(json.bos),
        raw_finder_(needles_of(json, false), path),
        normalized_finder_(needles_of(json, true), path),
        texts_(json.pieces.size()),
        kinds_(json.pieces.size(), PieceKind::kBoundary) {
    read_kinds(json);
    for (std::string_view name : kSeparators)
      for (const AddedToken& token : json.added)
        if (!separator_ && token.special && token.content == name) separator_ = token.id;
    bpe_ = std::make_unique<BpeModel>(std::move(json.bpe));
  }

  int64_t vocab_size() const override { return static_cast<int64_t>(pieces_.size()); }
  bool may_be_padded() const override { return true; }
  PieceKind kind(Token token) const override { return kinds_[static_cast<size_t>(token)]; }
  const std::string& piece(Token token) const override { return pieces_[static_cast<size_t>(token)]; }
  std::string text_of(Token token) const override { return texts_[static_cast<size_t>(token)]; }
  bool begins_with_dropped_space(Token token) const override {
    return steps_.puts_space_in_front && kind(token) == PieceKind::kText && text_of(token).starts_with(' ');
  }
  std::optional<Token> bos_id() const override { return bos_; }
  std::optional<Token> separator_id() const override { return separator_; }

  std::vector<Token> encode(std::string_view text) const override {
    if (auto at = first_invalid_utf8(text))
      throw FormatError(path_, "cannot tokenize the text: not UTF-8 at its byte " + std::to_string(*at));
    if (text.size() > kMostTextBytes)
      throw FormatError(path_, "cannot tokenize the text: it has " + std::to_string(text.size()) + " B, at most " +
                                   std::to_string(kMostTextBytes) + " are allowed");
    std::vector<Token> tokens;
    const MatchTime time(text.size());
    BpeModel::Encoder encoder = bpe_->encoder();
    for (const AddedSplit& part : raw_finder_.split(text, time)) {
      if (part.token)
        tokens.push_back(*part.token);
      else
        add_stretch(text.substr(part.begin, part.end - part.begin), part.begin == 0, time, encoder, tokens);
    }
    return tokens;
  }

  std::string decode(std::span<const Token> tokens) const override {
    std::string bytes;
    for (Token token : tokens) bytes += texts_[static_cast<size_t>(token)];
    const bool drops_space = steps_.puts_space_in_front && bytes.starts_with(' ');
    return as_utf8(std::string_view(bytes).substr(drops_space ? 1 : 0));
  }

 private:
  void read_kinds(const TokenizerJson& json) {
    std::vector<bool> is_added(pieces_.size()), is_special(pieces_.size());
    for (const AddedToken& token : json.added) {
      is_added[token.id] = true;
      is_special[token.id] = token.special;
    }
    for (size_t id = 0; id < pieces_.size(); ++id) {
      const std::string& spelled = json.bpe.texts[id];
      if (pieces_[id].empty() || is_special[id] || json.bpe.unknown == static_cast<Token>(id)) continue;
      kinds_[id] = PieceKind::kText;
      if (steps_.is_byte_level)
        texts_[id] = spelled.empty() ? pieces_[id] : spelled;
      else
        texts_[id] = steps_.has_marks ? with_spaces_for_marks(pieces_[id]) : pieces_[id];
    }
    for (size_t byte = 0; byte < json.bpe.fallback_bytes.size(); ++byte) {
      const std::optional<Token> id = json.bpe.fallback_bytes[byte];
      if (!id || kinds_[*id] == PieceKind::kBoundary || is_added[*id]) continue;
      kinds_[*id] = PieceKind::kByte;
      texts_[*id] = static_cast<char>(byte);
    }
  }

  // A stretch of text between added tokens that are looked for in the text itself.
  void add_stretch(std::string_view stretch, bool begins_text, const MatchTime& time, BpeModel::Encoder& encoder,
                   std::vector<Token>& tokens) const {
    const std::string text = normalized(steps_, std::string(stretch), time);
    for (const AddedSplit& part : normalized_finder_.split(text, time)) {
      if (part.token) {
        tokens.push_back(*part.token);
        continue;
      }
      TextPiece piece{text.substr(part.begin, part.end - part.begin), begins_text && part.begin == 0};
      for (const TextPiece& word : thimble::split(steps_, std::move(piece), time)) encoder.add(word.text, tokens);
    }
  }

  std::string path_;
  TextSteps steps_;
  std::vector<std::string> pieces_;
  std::optional<Token> bos_, separator_;
  AddedTokenFinder raw_finder_, normalized_finder_;
  std::vector<std::string> texts_;  // (V) bytes that each token stands for
  std::vector<PieceKind> kinds_;    // (V)
  std::unique_ptr<BpeModel> bpe_;
};

}  // namespace

std::unique_ptr<TokenizerModel> read_tokenizer_json(Bytes file, const std::string& path) {
  return std::make_unique<BpeTokenizer>(parse_tokenizer_json(file, path), path);
}

}  // namespace thimble
