// byte_table.cpp: fills the table from a tokenizer's pieces.
#include "eval/text/byte_table.h"

#include <algorithm>
#include <string>

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {

ByteTable::ByteTable(const Tokenizer& tokenizer)
    : entries_(tokenizer.vocab_size()), may_be_padded_(tokenizer.may_be_padded()) {
  for (size_t token = 0; token < entries_.size(); ++token) {
    Entry& entry = entries_[token];
    const auto id = static_cast<Token>(token);
    entry.is_boundary = tokenizer.kind(id) == PieceKind::kBoundary;
    entry.has_leading_space = tokenizer.begins_with_dropped_space(id);
    entry.base_bytes = static_cast<uint32_t>(tokenizer.text_of(id).size()) - (entry.has_leading_space ? 1 : 0);
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
