// text_regex.h: regular expressions of tokenizer files, through PCRE2. The files mean Oniguruma's; what both read alike
// is taken, and the rest refused: back references, recursion, verbs, look-behind, \w, \h, anchors, \p{} of other
// properties than general categories, expressions that match nothing.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace thimble {

struct TextSpan {
  size_t begin = 0, end = 0;  // bytes
};

// How long a tokenizer may take for one text, in CPU time of the thread. Limits on the steps of each match leave
// expressions, and sets of added tokens, that are slow at every place of a long text. Known tokenizers take a
// hundredth.
class MatchTime {
 public:
  // Begins now.
  explicit MatchTime(size_t text_bytes);
  bool is_over() const;

 private:
  static constexpr double kLeastSeconds = 1, kSecondsPerByte = 5e-6;
  double allowed_seconds_, begin_, thread_begin_;
};

class TextRegex {
 public:
  static constexpr size_t kMostBytes = 4096;         // of an expression
  static constexpr uint32_t kMostSteps = 2'000'000;  // of one match, before it is given up

  // FormatError(path) naming `object`, the expression and what is refused.
  TextRegex(const std::string& expression, const std::string& path, const std::string& object);

  // All matches, leftmost first, none empty and none overlapping. `text` must be UTF-8. FormatError when a match takes
  // more than kMostSteps, or when `time` is over. Safe from several threads.
  std::vector<TextSpan> matches(std::string_view text, const MatchTime& time) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
  std::string path_, expression_;
};

}  // namespace thimble
