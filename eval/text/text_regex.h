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

class TextRegex {
 public:
  static constexpr size_t kMostBytes = 4096;         // of an expression
  static constexpr uint32_t kMostSteps = 5'000'000;  // of one match, before it is given up

  // FormatError(path) naming `object`, the expression and what is refused.
  TextRegex(const std::string& expression, const std::string& path, const std::string& object);

  // All matches, leftmost first, none empty and none overlapping. `text` must be UTF-8. FormatError when a match takes
  // more than kMostSteps, or all of them more than a second and 2 microseconds for each byte. Safe from several
  // threads.
  std::vector<TextSpan> matches(std::string_view text) const;

 private:
  struct Code;
  std::shared_ptr<const Code> code_;
  std::string path_, expression_;
};

}  // namespace thimble
