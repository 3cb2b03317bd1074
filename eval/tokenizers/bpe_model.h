// bpe_model.h: byte-pair encoding of one piece of text: its symbols (bytes or characters), then the merge of the lowest
// rank, leftmost first, until none is left. (Sennrich, Haddow, Birch 2016, as `tokenizers` does it.)
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "runtime/ops/token_sequences.h"

namespace thimble {

struct BpeMerge {
  Token left = 0, right = 0, made = 0;
};

struct BpeVocabulary {
  std::vector<std::string> texts;  // (V) what each token spells; empty: no piece of text is this token
  std::vector<BpeMerge> merges;    // by rank
  bool symbols_are_bytes = false;  // else characters
  bool ignores_merges = false;     // a piece that is a token is that token
  bool fuses_unknown = false;      // unknown symbols in a row are one
  std::optional<Token> unknown;    // without one, unknown symbols are left out
  std::array<std::optional<Token>, 256> fallback_bytes;  // of characters that are no token; all absent: no fallback
};

class BpeModel {
 public:
  explicit BpeModel(BpeVocabulary vocabulary);

  // Adds the tokens of `piece`, valid UTF-8 where symbols are characters. Safe from several threads.
  class Encoder;
  // Encodes with the shared cache of pieces where no other thread has it, else with one of its own.
  Encoder encoder() const;

 private:
  struct Merge {
    uint32_t rank = 0;
    Token made = 0;
  };
  using Words = std::unordered_map<std::string, std::vector<Token>>;

  void add_merged(std::string_view piece, std::vector<Token>& tokens) const;
  std::vector<Token> symbols_of(std::string_view piece) const;
  const Merge* merge_of(Token left, Token right) const;

  BpeVocabulary vocabulary_;
  std::unordered_map<std::string_view, Token> ids_;  // of texts_
  std::unordered_map<uint64_t, Merge> merges_;
  // Does a merge make a token where this byte is followed by a space mark? Where none does, and the mark is a token,
  // pieces are cut before the mark, so that words are found in the cache.
  bool cuts_at_marks_ = false;
  std::array<bool, 256> joins_mark_{};
  mutable std::mutex mutex_;
  mutable Words words_;
};

class BpeModel::Encoder {
 public:
  void add(std::string_view piece, std::vector<Token>& tokens);

 private:
  friend class BpeModel;
  explicit Encoder(const BpeModel& model) : model_(model), lock_(model.mutex_, std::try_to_lock) {}
  void add_word(std::string_view word, std::vector<Token>& tokens);

  const BpeModel& model_;
  std::unique_lock<std::mutex> lock_;
  Words own_words_;
};

}  // namespace thimble
