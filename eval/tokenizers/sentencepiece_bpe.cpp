// sentencepiece_bpe.cpp: symbols are characters and user-defined pieces; of neighbours that spell a piece together
// those of the highest score merge first, the leftmost of equals. (Sennrich, Haddow, Birch 2016, as SentencePiece does
// it.)
#include "eval/tokenizers/sentencepiece_bpe.h"

#include <algorithm>
#include <queue>

#include "eval/tokenizers/utf8.h"

namespace thimble {
namespace {

constexpr size_t kMostSymbolBytes = size_t{1} << 28;  // of one document: symbols are counted in 32 bits

std::string byte_piece(size_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return std::string("<0x") + kDigits[byte / 16] + kDigits[byte % 16] + ">";
}

// Bytes of the character that begins so, by its first byte alone.
size_t character_bytes(char first) {
  const auto lead = static_cast<uint8_t>(first);
  return lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
}

}  // namespace

// One normalized text.
class SentencePieceBpe::Encoder {
 public:
  explicit Encoder(const SentencePieceBpe& model) : model_(model) {}

  std::vector<Token> encode(std::string_view text) {
    add_symbols(text);
    for (int32_t i = 1; i < static_cast<int32_t>(symbols_.size()); ++i) consider(i - 1, i);
    while (!queue_.empty()) {
      const Candidate best = queue_.top();
      queue_.pop();
      merge(best);
    }
    for (const Symbol& symbol : symbols_)
      if (!symbol.text.empty()) add_tokens(symbol.text);
    return std::move(tokens_);
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Symbol {
    std::string_view text;  // empty: merged into the one before
    int32_t previous, next;
    bool is_whole;  // user-defined: never merged
  };
  struct Candidate {
    float score;
    int32_t left, right;
    size_t bytes;  // of both
    bool operator<(const Candidate& other) const {
      return score != other.score ? score < other.score : left > other.left;
    }
  };

  Symbol& at(int32_t i) { return symbols_[static_cast<size_t>(i)]; }

  void add_symbols(std::string_view text) {
    while (!text.empty()) {
      const size_t whole = model_.normalizer_.symbols().match(text);
      const size_t length = whole > 0 ? whole : std::min(text.size(), character_bytes(text[0]));
      const auto count = static_cast<int32_t>(symbols_.size());
      symbols_.push_back({text.substr(0, length), count - 1, count + 1, whole > 0});
      text.remove_prefix(length);
    }
    if (!symbols_.empty()) symbols_.back().next = kNone;
  }

  // Neighbours' texts lie one after the other.
  std::string_view joined(int32_t left, int32_t right) {
    return {at(left).text.data(), at(left).text.size() + at(right).text.size()};
  }

  void consider(int32_t left, int32_t right) {
    if (left == kNone || right == kNone || at(left).is_whole || at(right).is_whole) return;
    const std::string_view text = joined(left, right);
    const auto found = model_.text_ids_.find(text);
    if (found == model_.text_ids_.end()) return;
    queue_.push({model_.model_.pieces[static_cast<size_t>(found->second)].score, left, right, text.size()});
    if (model_.type(found->second) == SentencePieceType::kUnused) parts_[text] = at(left).text.size();
  }

  void merge(const Candidate& pair) {
    Symbol &left = at(pair.left), &right = at(pair.right);
    if (left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != pair.bytes)
      return;  // one of the two has been merged since
    left.text = joined(pair.left, pair.right);
    right.text = {};
    left.next = right.next;
    if (right.next != kNone) at(right.next).previous = pair.left;
    consider(left.previous, pair.left);
    consider(pair.left, left.next);
  }

  // An unused piece falls apart again into what it was made of.
  void add_tokens(std::string_view text) {
    const Token token = model_.token_of(text);
    if (model_.type(token) == SentencePieceType::kUnused) {
      if (const auto parts = parts_.find(text); parts != parts_.end()) {
        const size_t left = parts->second;
        add_tokens(text.substr(0, left));
        add_tokens(text.substr(left));
        return;
      }
    }
    const bool is_unknown = token == model_.unknown_;
    if (is_unknown && model_.model_.has_bytes) {
      for (char byte : text) tokens_.push_back(model_.bytes_[static_cast<uint8_t>(byte)]);
    } else if (!is_unknown || !follows_unknown_) {  // unknown symbols in a row are one
      tokens_.push_back(token);
    }
    follows_unknown_ = is_unknown;
  }

  const SentencePieceBpe& model_;
  std::vector<Symbol> symbols_;
  std::priority_queue<Candidate> queue_;
  std::unordered_map<std::string_view, size_t> parts_;  // of unused pieces: bytes of the left one
  std::vector<Token> tokens_;
  bool follows_unknown_ = false;
};

SentencePieceBpe::SentencePieceBpe(Bytes file, const std::string& path)
    : path_(path), model_(read_sentencepiece_pieces(file, path)), normalizer_(model_, path) {
  model_.charsmap = {};  // the normalizer has its own, and the file's bytes go
  if (model_.model_type != "bpe") fail("is of the type '" + model_.model_type + "', only 'bpe' is read here");
  if (model_.has_denormalizer) fail("changes the characters of what it decodes, which is not done here");
  for (size_t id = 0; id < model_.pieces.size(); ++id) add_piece(static_cast<Token>(id));
  if (unknown_ < 0) fail("has no unknown piece");
  if (model_.has_bytes && byte_pieces_ != bytes_.size())
    fail("has " + std::to_string(byte_pieces_) + " byte pieces, must have 256");
  const Token bos = token_of(model_.bos.empty() ? "<s>" : model_.bos);
  if (type(bos) == SentencePieceType::kControl) bos_ = bos;
}

void SentencePieceBpe::fail(const std::string& what) const {
  throw FormatError(path_, "not a usable SentencePiece model: it " + what);
}

void SentencePieceBpe::add_piece(Token id) {
  const SentencePieceType its_type = type(id);
  const bool is_text = its_type == SentencePieceType::kNormal || its_type == SentencePieceType::kUserDefined ||
                       its_type == SentencePieceType::kUnused;
  auto& ids = is_text ? text_ids_ : other_ids_;
  if (!ids.emplace(piece(id), id).second) fail("has the piece '" + piece(id) + "' twice");
  if (its_type == SentencePieceType::kByte) add_byte(id);
  if (its_type != SentencePieceType::kUnknown) return;
  if (unknown_ >= 0) fail("has two unknown pieces");
  unknown_ = id;
}

void SentencePieceBpe::add_byte(Token id) {
  if (!model_.has_bytes) fail("has the byte piece '" + piece(id) + "' and spells nothing in bytes");
  size_t byte = 0;
  while (byte < bytes_.size() && piece(id) != byte_piece(byte)) ++byte;
  if (byte == bytes_.size()) fail("has the byte piece '" + piece(id) + "', which names no byte");
  bytes_[byte] = id;
  ++byte_pieces_;
}

Token SentencePieceBpe::token_of(std::string_view text) const {
  if (const auto found = other_ids_.find(text); found != other_ids_.end()) return found->second;
  const auto found = text_ids_.find(text);
  return found == text_ids_.end() ? unknown_ : found->second;
}

PieceKind SentencePieceBpe::kind(Token token) const {
  switch (type(token)) {
    case SentencePieceType::kControl:
    case SentencePieceType::kUnknown:
    case SentencePieceType::kUnused: return PieceKind::kBoundary;
    case SentencePieceType::kByte: return PieceKind::kByte;
    default: return PieceKind::kText;
  }
}

std::string SentencePieceBpe::text_of(Token token) const {
  switch (kind(token)) {
    case PieceKind::kBoundary: break;
    case PieceKind::kText: return with_spaces_for_marks(piece(token));
    case PieceKind::kByte: {
      const auto byte = std::find(bytes_.begin(), bytes_.end(), token) - bytes_.begin();
      return {static_cast<char>(byte)};
    }
  }
  return {};
}

bool SentencePieceBpe::begins_with_dropped_space(Token token) const {
  return kind(token) == PieceKind::kText && piece(token).starts_with(kSpaceMark);
}

std::vector<Token> SentencePieceBpe::encode(std::string_view text) const {
  const std::string normalized = normalizer_.normalized(text);
  if (normalized.size() > kMostSymbolBytes)
    throw FormatError(path_, "cannot tokenize the text: it has more than " + std::to_string(kMostSymbolBytes) + " B");
  return Encoder(*this).encode(normalized);
}

std::string SentencePieceBpe::decode(std::span<const Token> tokens) const {
  Text stream(*this);
  std::string text;
  for (Token token : tokens) text += stream.add(token);
  return text + stream.end();
}

std::string SentencePieceBpe::Text::add(Token token) {
  std::string text;
  if (model_->kind(token) == PieceKind::kByte) {
    bytes_ += model_->text_of(token);
    text = take_characters(/*at_end=*/false);
  } else {
    text = end();
    if (!text.empty() || has_left_out_) is_at_begin_ = false;
    text += text_of_piece(token);
  }
  if (!text.empty()) is_at_begin_ = false;
  return text;
}

std::string SentencePieceBpe::Text::end() { return take_characters(/*at_end=*/true); }

std::string SentencePieceBpe::Text::take_characters(bool at_end) {
  std::string text;
  while (!bytes_.empty() && (at_end || bytes_.size() >= character_bytes(bytes_[0]))) {
    const size_t length = decode_utf8(bytes_).length;
    text += length > 0 ? std::string_view(bytes_).substr(0, length) : kReplacementCharacter;
    bytes_.erase(0, std::max<size_t>(1, length));
  }
  return text;
}

std::string SentencePieceBpe::Text::text_of_piece(Token token) {
  const SentencePieces& model = model_->model_;
  if (model_->type(token) == SentencePieceType::kControl) return {};
  if (model_->type(token) == SentencePieceType::kUnknown) return model.unknown_text;
  std::string_view piece = model_->piece(token);
  if (is_at_begin_ && (model.adds_space || model.trims_spaces) && piece.starts_with(kSpaceMark)) {
    piece.remove_prefix(kSpaceMark.size());
    has_left_out_ = !model.trims_spaces;
  }
  return with_spaces_for_marks(piece);
}

}  // namespace thimble
