// script.cpp: see script.h.
#include "eval/text/script.h"

#include <algorithm>

#include "eval/tokenizers/unicode_versions.h"
#include "eval/tokenizers/utf8.h"

namespace thimble {
namespace {

struct Block {
  uint32_t first, last;
  Script script;
};

// Ascending.
constexpr Block kBlocks[] = {
    {0x41, 0x24F, Script::kLatin},       {0x370, 0x3FF, Script::kGreek},      {0x400, 0x52F, Script::kCyrillic},
    {0x530, 0x58F, Script::kArmenian},   {0x590, 0x5FF, Script::kHebrew},     {0x600, 0x6FF, Script::kArabic},
    {0x750, 0x77F, Script::kArabic},     {0x8A0, 0x8FF, Script::kArabic},     {0x900, 0x97F, Script::kDevanagari},
    {0x980, 0x9FF, Script::kBengali},    {0xA00, 0xA7F, Script::kGurmukhi},   {0xA80, 0xAFF, Script::kGujarati},
    {0xB00, 0xB7F, Script::kOriya},      {0xB80, 0xBFF, Script::kTamil},      {0xC00, 0xC7F, Script::kTelugu},
    {0xC80, 0xCFF, Script::kKannada},    {0xD00, 0xD7F, Script::kMalayalam},  {0xD80, 0xDFF, Script::kSinhala},
    {0xE00, 0xE7F, Script::kThai},       {0xE80, 0xEFF, Script::kLao},        {0xF00, 0xFFF, Script::kTibetan},
    {0x1000, 0x109F, Script::kMyanmar},  {0x10A0, 0x10FF, Script::kGeorgian}, {0x1100, 0x11FF, Script::kHangul},
    {0x1200, 0x139F, Script::kEthiopic}, {0x1780, 0x17FF, Script::kKhmer},    {0x1800, 0x18AF, Script::kMongolian},
    {0x1E00, 0x1EFF, Script::kLatin},    {0x1F00, 0x1FFF, Script::kGreek},    {0x3040, 0x30FF, Script::kKana},
    {0x3130, 0x318F, Script::kHangul},   {0x31F0, 0x31FF, Script::kKana},     {0x3400, 0x4DBF, Script::kHan},
    {0x4E00, 0x9FFF, Script::kHan},      {0xAC00, 0xD7FF, Script::kHangul},   {0xF900, 0xFAFF, Script::kHan},
    {0xFB50, 0xFDFF, Script::kArabic},   {0xFE70, 0xFEFC, Script::kArabic},   {0x20000, 0x323AF, Script::kHan}};

bool is_letter(uint32_t character) {
  const utf8proc_category_t category = general_category(character);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

}  // namespace

std::optional<Script> script_of(std::string_view text) {
  std::optional<Script> first;
  while (!text.empty()) {
    const CodePoint character = decode_utf8(text);
    text.remove_prefix(std::max<size_t>(1, character.length));
    if (character.length == 0 || !is_letter(character.value)) continue;
    const auto block = std::ranges::lower_bound(kBlocks, character.value, {}, &Block::last);
    if (block == std::end(kBlocks) || character.value < block->first) continue;
    if (!first) first = block->script;
    if (first != Script::kLatin) return first;
    if (block->script == Script::kLatin && character.value > 0x7F) return Script::kLatinBeyondAscii;
  }
  return first;
}

}  // namespace thimble
