// unicode_versions.h: characters as the `tokenizers` library has them, where its versions of Unicode are others than
// those of PCRE2 and utf8proc. In its releases 0.22 and 0.23:
//   regular expressions, white space, words   Unicode 16
//   the step Digits                           Unicode 17
//   normal forms                              Unicode 9
#pragma once

#include <utf8proc.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace thimble {

// Of Unicode 16.
utf8proc_category_t general_category(uint32_t character);

// A digit, letter or other sign of a number, of Unicode 17.
bool is_numeric(uint32_t character);

// Does it stay as it is and keep its neighbours apart in every normal form, because Unicode 9 had no such character?
bool is_unknown_to_normal_forms(uint32_t character);

// `text`, with each character that a library of Unicode 14 does not know as one of the same length and category that
// it knows; `storage` holds the text where there was one. `text` must be UTF-8.
std::string_view with_known_characters(std::string_view text, std::string& storage);

}  // namespace thimble
