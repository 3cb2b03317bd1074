// added_tokens.cpp: reads added tokens and finds them in texts.
#include "eval/tokenizers/added_tokens.h"

#include <algorithm>
#include <set>

#include "eval/tokenizers/json_step.h"
#include "eval/tokenizers/unicode_versions.h"
#include "eval/tokenizers/utf8.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr size_t kMostContentBytes = 1024;

// White_Space of Unicode.
bool is_space(CodePoint character) {
  const uint32_t value = character.value;
  if (value >= 0x09 && value <= 0x0d) return true;
  const utf8proc_category_t category = general_category(value);
  return value == 0x85 || category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
         category == UTF8PROC_CATEGORY_ZP;
}

// \w of Unicode: letters, marks, digits, connectors, joiners.
bool is_word(CodePoint character) {
  const uint32_t value = character.value;
  switch (general_category(value)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  const bool is_circled_letter = value >= 0x24b6 && value <= 0x24e9;  // alphabetic, though symbols
  const bool is_squared_letter = (value >= 0x1f130 && value <= 0x1f149) || (value >= 0x1f150 && value <= 0x1f169) ||
                                 (value >= 0x1f170 && value <= 0x1f189);
  return value == 0x200c || value == 0x200d || is_circled_letter || is_squared_letter;
}

// The last character of `text`, which is UTF-8 and not empty.
CodePoint last_character(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xc0) == 0x80) --begin;
  return decode_utf8(text.substr(begin));
}

size_t without_spaces_before(std::string_view text, size_t least) {
  while (text.size() > least) {
    const CodePoint last = last_character(text);
    if (!is_space(last)) break;
    text.remove_suffix(last.length);
  }
  return std::max(text.size(), least);
}

size_t leading_space_bytes(std::string_view text) {
  size_t bytes = 0;
  while (bytes < text.size()) {
    const CodePoint next = decode_utf8(text.substr(bytes));
    if (!is_space(next)) break;
    bytes += next.length;
  }
  return bytes;
}

bool stands_alone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0 && is_word(last_character(text.substr(0, begin)))) return false;
  return end == text.size() || !is_word(decode_utf8(text.substr(end)));
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const Json& list, const std::string& path) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array() || list.size() > static_cast<size_t>(kMostTokens))
    throw FormatError(path, "added_tokens must be an array of at most " + std::to_string(kMostTokens));
  std::set<Token> ids;
  std::set<std::string> contents;
  for (size_t i = 0; i < list.size(); ++i) {
    JsonStep step(list[i], path, "added_tokens " + std::to_string(i));
    AddedToken token;
    const Json& id = step.get("id");
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMostTokens))
      step.refuse("id", "0 to " + std::to_string(kMostTokens - 1));
    token.id = id.get<Token>();
    token.content = step.text("content");
    if (token.content.empty() || token.content.size() > kMostContentBytes)
      step.refuse("content", "a text of 1 to " + std::to_string(kMostContentBytes) + " B");
    token.single_word = step.flag("single_word", false);
    token.lstrip = step.flag("lstrip", false);
    token.rstrip = step.flag("rstrip", false);
    token.special = step.flag("special", false);
    token.normalized = step.flag("normalized", !token.special);
    step.finish();
    if (!ids.insert(token.id).second) step.refuse("id", "an id that no other added token has");
    if (!contents.insert(token.content).second) step.refuse("content", "a text that no other added token has");
    tokens.push_back(std::move(token));
  }
  return tokens;
}

AddedTokenFinder::AddedTokenFinder(std::vector<Needle> needles, const std::string& path)
    : path_(path), needles_(std::move(needles)), begins_(256) {
  std::ranges::stable_sort(needles_, {}, &Needle::text);
  for (const Needle& needle : needles_)
    if (!needle.text.empty()) begins_[static_cast<uint8_t>(needle.text[0])] = true;
}

const AddedTokenFinder::Needle* AddedTokenFinder::longest_at(std::string_view text) const {
  const Needle* found = nullptr;
  auto first = needles_.begin(), last = needles_.end();
  // Those that agree with the text in their first `length` bytes; the one that ends there is sorted first.
  for (size_t length = 1; length <= text.size() && first != last; ++length) {
    auto byte = [&](const Needle& needle) {
      return needle.text.size() < length ? -1 : static_cast<int>(static_cast<uint8_t>(needle.text[length - 1]));
    };
    const int wanted = static_cast<uint8_t>(text[length - 1]);
    first = std::ranges::lower_bound(first, last, wanted, {}, byte);
    last = std::ranges::upper_bound(first, last, wanted, {}, byte);
    if (first != last && first->text.size() == length) found = &*first;
  }
  return found;
}

std::vector<AddedSplit> AddedTokenFinder::split(std::string_view text, const MatchTime& time) const {
  constexpr size_t kLooksBetweenTimes = 64;
  size_t looks = 0;
  std::vector<AddedSplit> parts;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    if (!begins_[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    if (++looks % kLooksBetweenTimes == 0 && time.is_over())
      throw FormatError(path_, "finding added tokens takes too long, at byte " + std::to_string(at) + " of a text");
    const Needle* found = longest_at(text.substr(at));
    if (!found) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + found->text.size();
    at = end;
    if (found->token.single_word && !stands_alone(text, begin, end)) continue;
    if (found->token.lstrip) begin = without_spaces_before(text.substr(0, begin), done);
    if (found->token.rstrip) end += leading_space_bytes(text.substr(end));
    if (done < begin) parts.push_back({done, begin, std::nullopt});
    parts.push_back({begin, end, found->token.id});
    done = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), std::nullopt});
  return parts;
}

}  // namespace thimble
