// unicode_versions.cpp: looks characters up in unicode_tables.h.
#include "eval/tokenizers/unicode_versions.h"

#include <algorithm>
#include <bitset>
#include <span>

#include "eval/tokenizers/unicode_tables.h"
#include "eval/tokenizers/utf8.h"

namespace thimble {
namespace {

constexpr uint32_t kPageBits = 8, kPages = 0x110000 >> kPageBits;
using Pages = std::bitset<kPages>;

template <typename Range, size_t N>
const Range* range_with(const Range (&ranges)[N], uint32_t character) {
  const Range* found = std::ranges::lower_bound(ranges, character, {}, &Range::last);
  return found != std::end(ranges) && found->first <= character ? found : nullptr;
}

// The pages of 256 characters that the ranges touch.
template <typename Range, size_t N>
Pages pages_of(const Range (&ranges)[N]) {
  Pages pages;
  for (const Range& range : ranges)
    for (uint32_t page = range.first >> kPageBits; page <= range.last >> kPageBits; ++page) pages.set(page);
  return pages;
}

const CategoryRange* new_category(uint32_t character) {
  static const Pages pages = pages_of(kNewCategories);
  return pages[character >> kPageBits] ? range_with(kNewCategories, character) : nullptr;
}

// Of one category; in UTF-8 of 3 and of 4 bytes. None is in the case of an ASCII letter.
struct Example {
  utf8proc_category_t category;
  std::string_view three, four;
};
constexpr Example kExamples[] = {
    {UTF8PROC_CATEGORY_LU, "\u1f08", "\U00010400"}, {UTF8PROC_CATEGORY_LL, "\u1f00", "\U00010428"},
    {UTF8PROC_CATEGORY_LM, "\u0e46", "\U00016b40"}, {UTF8PROC_CATEGORY_LO, "\u0e01", "\U00010000"},
    {UTF8PROC_CATEGORY_MN, "\u0901", "\U00011001"}, {UTF8PROC_CATEGORY_MC, "\u0903", "\U00011000"},
    {UTF8PROC_CATEGORY_ND, "\u0966", "\U000104a0"}, {UTF8PROC_CATEGORY_NO, "\u09f4", "\U00010107"},
    {UTF8PROC_CATEGORY_PD, "\u1400", "\U00010ead"}, {UTF8PROC_CATEGORY_PO, "\u0964", "\U00010100"},
    {UTF8PROC_CATEGORY_SM, "\u2044", "\U0001d6c1"}, {UTF8PROC_CATEGORY_SO, "\u0b70", "\U00010137"},
    {UTF8PROC_CATEGORY_CF, "\u200b", "\U000110bd"},
};

// Empty where there is none.
std::string_view known_character(CodePoint character) {
  const CategoryRange* range = character.length < 3 ? nullptr : new_category(character.value);
  if (!range) return {};
  const Example* example = std::ranges::find(kExamples, range->category, &Example::category);
  if (example == std::end(kExamples)) return {};
  return character.length == 3 ? example->three : example->four;
}

}  // namespace

utf8proc_category_t general_category(uint32_t character) {
  const CategoryRange* range = new_category(character);
  return range ? range->category : utf8proc_category(static_cast<utf8proc_int32_t>(character));
}

bool is_numeric(uint32_t character) {
  constexpr CodePointRange kOfUnicode17[] = {{0x11de0, 0x11de9}, {0x16ff4, 0x16ff6}};
  switch (general_category(character)) {
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO: return true;
    default: return range_with(kOfUnicode17, character) != nullptr;
  }
}

bool is_unknown_to_normal_forms(uint32_t character) {
  static const Pages pages = pages_of(kNewInNormalForms);
  return pages[character >> kPageBits] && range_with(kNewInNormalForms, character);
}

std::string_view with_known_characters(std::string_view text, std::string& storage) {
  constexpr uint8_t kLeadOfThree = 0xe0;
  bool is_changed = false;
  for (size_t at = 0; at < text.size();) {
    if (static_cast<uint8_t>(text[at]) < kLeadOfThree) {
      ++at;
      continue;
    }
    const CodePoint next = decode_utf8(text.substr(at));
    const std::string_view known = known_character(next);
    if (!known.empty()) {
      if (!is_changed) storage = text;
      is_changed = true;
      storage.replace(at, next.length, known);
    }
    at += next.length;
  }
  return is_changed ? std::string_view(storage) : text;
}

}  // namespace thimble
