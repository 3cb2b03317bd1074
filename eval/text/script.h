// script.h: the scripts that texts are written in.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace thimble {

// Those of living languages that have a block of Unicode to themselves (Unicode 15, Blocks.txt).
enum class Script : uint8_t {
  kLatin,
  kLatinBeyondAscii,  // with a letter that ASCII lacks: written in most languages of this script but English
  kGreek,
  kCyrillic,
  kArmenian,
  kHebrew,
  kArabic,
  kDevanagari,
  kBengali,
  kGurmukhi,
  kGujarati,
  kOriya,
  kTamil,
  kTelugu,
  kKannada,
  kMalayalam,
  kSinhala,
  kThai,
  kLao,
  kTibetan,
  kMyanmar,
  kGeorgian,
  kHangul,
  kEthiopic,
  kKhmer,
  kMongolian,
  kKana,
  kHan,
};

// Of the first letter that belongs to one; nothing where there is none. Latin is beyond ASCII where any of its letters
// is. Bytes that are not UTF-8 are passed over.
std::optional<Script> script_of(std::string_view text);

}  // namespace thimble
