// text_pieces.h: what a tokenizer.json does with a text before its byte-pair encoding: normalizers change it,
// pre-tokenizers split it.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tokenizers/text_regex.h"
#include "runtime/base/json.h"

namespace thimble {

struct TextPiece {
  std::string text;
  bool begins_text = false;  // nothing was before it
};

// Changes one stretch of text.
using Normalizer = std::function<std::string(std::string, const MatchTime&)>;
// Splits each piece, none of them empty, into pieces.
using PreTokenizer = std::function<std::vector<TextPiece>(std::vector<TextPiece>, const MatchTime&)>;

// What the steps were, as far as others depend on it.
struct TextSteps {
  std::string path;  // for errors
  std::vector<Normalizer> normalizers;
  std::vector<PreTokenizer> pre_tokenizers;
  bool is_byte_level = false;        // the vocabulary spells bytes (byte_alphabet.h)
  bool puts_space_in_front = false;  // of a text that has none there
  bool has_marks = false;            // spaces become kSpaceMark
};

// From the values of "normalizer" and "pre_tokenizer". FormatError(path) for a step or a key that is not known.
TextSteps read_text_steps(const Json& normalizer, const Json& pre_tokenizer, const std::string& path);

// FormatError when the text becomes much longer than any known normalizer makes it, and when `time` is over.
std::string normalized(const TextSteps& steps, std::string text, const MatchTime& time);
std::vector<TextPiece> split(const TextSteps& steps, TextPiece piece, const MatchTime& time);

}  // namespace thimble
