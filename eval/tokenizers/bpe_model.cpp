// bpe_model.cpp: merges with a queue, words from a cache.
#include "eval/tokenizers/bpe_model.h"

#include <algorithm>
#include <queue>

#include "eval/tokenizers/tokenizer_model.h"
#include "eval/tokenizers/utf8.h"

namespace thimble {
namespace {

constexpr size_t kMostCachedWords = 100'000;
constexpr size_t kMostCachedWordBytes = 64;

uint64_t pair_key(Token left, Token right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

BpeModel::BpeModel(BpeVocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {
  for (size_t token = 0; token < vocabulary_.texts.size(); ++token)
    if (!vocabulary_.texts[token].empty()) ids_.emplace(vocabulary_.texts[token], static_cast<Token>(token));
  merges_.reserve(vocabulary_.merges.size());
  for (size_t rank = 0; rank < vocabulary_.merges.size(); ++rank) {
    const BpeMerge& merge = vocabulary_.merges[rank];
    merges_.insert_or_assign(pair_key(merge.left, merge.right), Merge{static_cast<uint32_t>(rank), merge.made});
    const std::string_view made = vocabulary_.texts[static_cast<size_t>(merge.made)];
    for (size_t at = made.find(kSpaceMark, 1); at != std::string_view::npos; at = made.find(kSpaceMark, at + 1))
      joins_mark_[static_cast<uint8_t>(made[at - 1])] = true;
  }
  // A symbol that is left out would bring its neighbours together.
  const bool keeps_symbols = vocabulary_.unknown || std::ranges::all_of(vocabulary_.fallback_bytes,
                                                                        [](const auto& id) { return id.has_value(); });
  cuts_at_marks_ =
      !vocabulary_.symbols_are_bytes && !vocabulary_.ignores_merges && keeps_symbols && ids_.contains(kSpaceMark);
}

BpeModel::Encoder BpeModel::encoder() const { return Encoder(*this); }

const BpeModel::Merge* BpeModel::merge_of(Token left, Token right) const {
  auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

std::vector<Token> BpeModel::symbols_of(std::string_view piece) const {
  std::vector<Token> symbols;
  constexpr Token kNothing = -1;
  Token pending = kNothing;  // an unknown symbol; bytes of a character go before it, as `tokenizers` has them
  for (size_t at = 0; at < piece.size();) {
    const size_t length = vocabulary_.symbols_are_bytes ? 1 : std::max<size_t>(decode_utf8(piece.substr(at)).length, 1);
    const std::string_view symbol = piece.substr(at, length);
    at += length;
    if (auto known = ids_.find(symbol); known != ids_.end()) {
      if (pending != kNothing) symbols.push_back(pending);
      pending = kNothing;
      symbols.push_back(known->second);
      continue;
    }
    auto fallback = [&](char byte) { return vocabulary_.fallback_bytes[static_cast<uint8_t>(byte)]; };
    if (std::ranges::all_of(symbol, [&](char byte) { return fallback(byte).has_value(); })) {
      for (char byte : symbol) symbols.push_back(*fallback(byte));
    } else if (vocabulary_.unknown) {
      if (pending != kNothing && !vocabulary_.fuses_unknown) symbols.push_back(pending);
      pending = *vocabulary_.unknown;
    }
  }
  if (pending != kNothing) symbols.push_back(pending);
  return symbols;
}

void BpeModel::add_merged(std::string_view piece, std::vector<Token>& tokens) const {
  struct Candidate {
    uint32_t rank;
    uint32_t position;
    Token made;
    bool operator>(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  constexpr int32_t kNone = -1;
  struct Symbol {
    Token token;
    int32_t previous, next;
    bool is_merged = false;  // into the one before
  };
  const std::vector<Token> ids = symbols_of(piece);
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Symbol> symbols;
  symbols.reserve(ids.size());
  for (int32_t i = 0; i < count; ++i) symbols.push_back({ids[i], i - 1, i + 1 < count ? i + 1 : kNone});

  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto consider = [&](int32_t position) {
    if (position == kNone || symbols[position].next == kNone) return;
    const Merge* merge = merge_of(symbols[position].token, symbols[symbols[position].next].token);
    if (merge) queue.push({merge->rank, static_cast<uint32_t>(position), merge->made});
  };
  for (int32_t i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    const auto position = static_cast<int32_t>(best.position);
    Symbol& left = symbols[position];
    if (left.is_merged || left.next == kNone) continue;
    const Symbol right = symbols[left.next];
    const Merge* merge = merge_of(left.token, right.token);
    if (!merge || merge->made != best.made) continue;  // one of the two has been merged since
    symbols[left.next].is_merged = true;
    left.token = best.made;
    left.next = right.next;
    if (right.next != kNone) symbols[right.next].previous = position;
    consider(left.previous);
    consider(position);
  }
  for (const Symbol& symbol : symbols)
    if (!symbol.is_merged) tokens.push_back(symbol.token);
}

void BpeModel::Encoder::add(std::string_view piece, std::vector<Token>& tokens) {
  if (!model_.cuts_at_marks_) return add_word(piece, tokens);
  size_t begin = 0;
  for (size_t at = piece.find(kSpaceMark, 1); at != std::string_view::npos; at = piece.find(kSpaceMark, at + 1)) {
    if (model_.joins_mark_[static_cast<uint8_t>(piece[at - 1])]) continue;
    add_word(piece.substr(begin, at - begin), tokens);
    begin = at;
  }
  add_word(piece.substr(begin), tokens);
}

void BpeModel::Encoder::add_word(std::string_view word, std::vector<Token>& tokens) {
  if (model_.vocabulary_.ignores_merges) {
    if (auto known = model_.ids_.find(word); known != model_.ids_.end()) {
      tokens.push_back(known->second);
      return;
    }
  }
  if (word.size() > kMostCachedWordBytes) return model_.add_merged(word, tokens);
  Words& words = lock_.owns_lock() ? model_.words_ : own_words_;
  if (words.size() >= kMostCachedWords) words.clear();
  auto [entry, is_new] = words.try_emplace(std::string(word));
  if (is_new) model_.add_merged(word, entry->second);
  tokens.insert(tokens.end(), entry->second.begin(), entry->second.end());
}

}  // namespace thimble
