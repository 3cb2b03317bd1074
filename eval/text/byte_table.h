// byte_table.h: how many bytes of text each token stands for: the denominator of bits per byte.
//
//   token                                  bytes
//   control, special, unknown, unused      0
//   byte token <0x00> .. <0xFF>            1
//   any other piece                        those that it stands for, a space mark being one space; but where encoding
//                                          puts a space in front of a text, a leading one only when the token before
//                                          is not a boundary
//
// Boundary tokens are those of the first line: after them a space in front is none of the text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "eval/tokenizers/tokenizer.h"

namespace thimble {

class ByteTable {
 public:
  explicit ByteTable(const Tokenizer& tokenizer);

  int64_t vocab_size() const { return static_cast<int64_t>(entries_.size()); }
  // May the model's vocabulary be another? As Tokenizer::may_be_padded().
  bool may_be_padded() const { return may_be_padded_; }
  bool is_boundary(Token token) const { return entry(token).is_boundary; }

  // Does it begin with a space that is dropped after a boundary?
  bool has_leading_space(Token token) const { return entry(token).has_leading_space; }

  // Bytes of `target` when it follows `previous`. Tokens from vocab_size() up are a model's padding: boundaries.
  int64_t bytes_of_target(Token previous, Token target) const {
    const Entry& found = entry(target);
    return found.base_bytes + (found.has_leading_space && !is_boundary(previous) ? 1 : 0);
  }

  // Bytes of tokens[1], tokens[2], ...: the first token only is context. UsageError when one is not in the vocabulary.
  int64_t bytes_of_targets(std::span<const Token> tokens) const;

 private:
  struct Entry {
    uint32_t base_bytes = 0;  // without a leading space
    bool has_leading_space = false;
    bool is_boundary = false;
  };
  static constexpr Entry kPadding = {.base_bytes = 0, .has_leading_space = false, .is_boundary = true};
  const Entry& entry(Token token) const {
    return static_cast<size_t>(token) < entries_.size() ? entries_[static_cast<size_t>(token)] : kPadding;
  }

  std::vector<Entry> entries_;  // (V)
  bool may_be_padded_;
};

}  // namespace thimble
