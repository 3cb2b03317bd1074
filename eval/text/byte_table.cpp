// byte_table.cpp: fills the table from a tokenizer's pieces.
#include "eval/text/byte_table.h"

#include <algorithm>
#include <string>

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

// UTF-8 length of the text a piece decodes to: a U+2581 inside is one space, not the three bytes of the mark.
uint32_t decoded_bytes(std::string_view piece) {
  size_t bytes = piece.size();
  for (size_t at = piece.find(kSpaceMark); at != std::string_view::npos;
       at = piece.find(kSpaceMark, at + kSpaceMark.size()))
    bytes -= kSpaceMark.size() - 1;
  return static_cast<uint32_t>(bytes);
}

}  // namespace

ByteTable::ByteTable(const Tokenizer& tokenizer) : entries_(tokenizer.vocab_size()) {
  for (size_t token = 0; token < entries_.size(); ++token) {
    Entry& entry = entries_[token];
    switch (tokenizer.kind(static_cast<Token>(token))) {
      case PieceKind::kBoundary: entry.is_boundary = true; break;
      case PieceKind::kByte: entry.base_bytes = 1; break;  // spelled with six characters, stands for one byte
      case PieceKind::kText: {
        std::string_view piece = tokenizer.piece(static_cast<Token>(token));
        entry.has_leading_space = piece.starts_with(kSpaceMark);
        entry.base_bytes = decoded_bytes(entry.has_leading_space ? piece.substr(kSpaceMark.size()) : piece);
        break;
      }
    }
  }
}

int64_t ByteTable::bytes_of_targets(std::span<const Token> tokens) const {
  auto unknown = std::find_if(tokens.begin(), tokens.end(), [&](Token token) { return token >= vocab_size(); });
  if (unknown != tokens.end())
    throw UsageError("token " + std::to_string(*unknown) + " at position " + std::to_string(unknown - tokens.begin()) +
                     ", the tokenizer has " + counted(entries_.size(), "piece"));
  int64_t bytes = 0;
  for (size_t i = 1; i < tokens.size(); ++i) bytes += bytes_of_target(tokens[i - 1], tokens[i]);
  return bytes;
}

}  // namespace thimble
