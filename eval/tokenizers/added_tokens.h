// added_tokens.h: the "added_tokens" of a tokenizer.json, which are found in a text before anything else is done to it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tokenizers/text_regex.h"
#include "runtime/base/json.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

struct AddedToken {
  Token id = 0;
  std::string content;       // UTF-8, not empty
  bool single_word = false;  // found only where no letter or digit is beside it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool normalized = false;   // looked for in the normalized text
  bool special = false;      // stands for no text
};

// FormatError(path) for what is not known, ids outside [0, kMostTokens), and tokens that are there twice.
std::vector<AddedToken> read_added_tokens(const Json& list, const std::string& path);

// A stretch of text, or the token that stands for it.
struct AddedSplit {
  size_t begin = 0, end = 0;  // bytes
  std::optional<Token> token;
};

// Finds tokens in texts: leftmost first, of those that begin at one place the longest.
class AddedTokenFinder {
 public:
  // What to look for: each token's text as the searched text would spell it.
  struct Needle {
    std::string text;
    AddedToken token;
  };
  // `path` is for errors.
  AddedTokenFinder(std::vector<Needle> needles, const std::string& path);

  // The parts of `text` in order, none of those without a token empty. `text` must be UTF-8. FormatError when `time` is
  // over.
  std::vector<AddedSplit> split(std::string_view text, const MatchTime& time) const;

 private:
  const Needle* longest_at(std::string_view text) const;

  std::string path_;
  std::vector<Needle> needles_;  // sorted by text
  std::vector<bool> begins_;     // (256): does a needle begin with this byte?
};

}  // namespace thimble
