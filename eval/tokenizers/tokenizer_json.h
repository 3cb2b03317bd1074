// tokenizer_json.h: the contents of a tokenizer.json, checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/tokenizers/added_tokens.h"
#include "eval/tokenizers/bpe_model.h"
#include "eval/tokenizers/text_pieces.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

struct TokenizerJson {
  TextSteps steps;
  std::vector<std::string> pieces;  // (V) as the file spells them; empty where no token has the id
  std::vector<AddedToken> added;
  BpeVocabulary bpe;         // of (V) texts, those of tokens that are only added empty
  std::optional<Token> bos;  // what the post-processor puts in front of a text
};

// Of a file that is a tokenizer: is it one of these, a JSON object? A SentencePiece model begins with a protobuf key,
// never with a brace.
bool holds_tokenizer_json(Bytes file);

// FormatError(path): the object, the key, the value and what is known.
TokenizerJson parse_tokenizer_json(Bytes file, const std::string& path);

}  // namespace thimble
