// canonical_reader.cpp: recursive descent. Strings are those that nlohmann's library writes: UTF-8 as it is, escapes
// for quotes, backslashes and control characters alone.
#include "packer/layout/canonical_reader.h"

#include "runtime/base/error.h"
#include "runtime/base/format_error.h"

namespace thimble {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

}  // namespace

void CanonicalReader::refuse(std::string_view wanted) const {
  throw_format_error(where_, "not JSON in canonical form: {} expected at byte {} of {}", wanted, at_, text_.size());
}

char CanonicalReader::next(std::string_view wanted) const {
  if (at_ == text_.size()) refuse(wanted);
  return text_[at_];
}

bool CanonicalReader::take(std::string_view part) {
  if (text_.substr(at_, part.size()) != part) return false;
  at_ += part.size();
  return true;
}

void CanonicalReader::expect(std::string_view part) {
  if (!take(part)) refuse(part);
}

bool CanonicalReader::boolean() {
  if (take("true")) return true;
  if (!take("false")) refuse("true or false");
  return false;
}

uint64_t CanonicalReader::number(std::string_view object) {
  const size_t begin = at_;
  if (!is_digit(next(object))) refuse(object);
  uint64_t value = 0;
  for (; at_ < text_.size() && is_digit(text_[at_]); ++at_) {
    const auto digit = static_cast<uint64_t>(text_[at_] - '0');
    const bool is_padded = at_ > begin && value == 0;
    if (is_padded || __builtin_mul_overflow(value, uint64_t{10}, &value) ||
        __builtin_add_overflow(value, digit, &value))
      refuse(object);
  }
  return value;
}

// The length in bytes of the character there, which is well-formed UTF-8 (table 3-7 of the Unicode standard).
uint32_t CanonicalReader::utf8_character() {
  const auto byte = [&](size_t i) {
    return at_ + i < text_.size() ? static_cast<uint8_t>(text_[at_ + i]) : uint8_t{0};
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  const uint32_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const uint8_t lowest = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t highest = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  if (lead < 0xc2 || lead > 0xf4 || byte(1) < lowest || byte(1) > highest) refuse("UTF-8");
  for (uint32_t i = 2; i < length; ++i)
    if ((byte(i) & 0xc0) != 0x80) refuse("UTF-8");
  return length;
}

// What a backslash, which has been read, and what follows it stand for.
char CanonicalReader::escaped() {
  constexpr std::string_view kLetters = "\"\\bfnrt", kMeanings = "\"\\\b\f\n\r\t";
  const char letter = next("an escape");
  ++at_;
  if (const size_t i = kLetters.find(letter); i != std::string_view::npos) return kMeanings[i];
  constexpr std::string_view kDigits = "0123456789abcdef";
  if (letter == 'u' && take("00")) {
    const size_t high = kDigits.find(next("an escape"));
    ++at_;
    const size_t low = kDigits.find(next("an escape"));
    ++at_;
    const auto code = static_cast<char>(16 * high + low);
    if (high < 2 && low < 16 && kMeanings.find(code) == std::string_view::npos) return code;
  }
  refuse("an escape");
}

std::string CanonicalReader::string(std::string_view object) {
  if (!take("\"")) refuse(object);
  std::string value;
  while (true) {
    const char c = next("the end of a string");
    if (static_cast<uint8_t>(c) < 0x20) refuse("a character of a string");
    if (take("\"")) return value;
    if (take("\\")) {
      value += escaped();
    } else {
      const uint32_t length = utf8_character();
      value += text_.substr(at_, length);
      at_ += length;
    }
  }
}

void CanonicalReader::skip_digits() {
  if (!is_digit(next("a digit"))) refuse("a digit");
  while (at_ < text_.size() && is_digit(text_[at_])) ++at_;
}

void CanonicalReader::skip_number() {
  take("-");
  if (!take("0")) skip_digits();
  if (take(".")) skip_digits();
  if (take("e") || take("E")) {
    if (!take("+")) take("-");
    skip_digits();
  }
}

void CanonicalReader::skip_value(int depth) {
  const char first = next("a value");
  if (first == '{') return skip_object(depth);
  if (first == '[') return skip_array(depth);
  if (first == '"') return static_cast<void>(string("string"));
  if (take("true") || take("false") || take("null")) return;
  if (first != '-' && !is_digit(first)) refuse("a value");
  skip_number();
}

void CanonicalReader::skip_object(int depth) {
  if (depth == kMaxDepth) throw_format_error(where_, "JSON nested deeper than {}", kMaxDepth);
  expect("{");
  std::string last;
  for (bool is_first = true; !take("}"); is_first = false) {
    if (!is_first) expect(",");
    std::string key = string("key");
    if (!is_first && key <= last) refuse(fill_text("a key that comes after '{}'", last));
    expect(":");
    skip_value(depth + 1);
    last = std::move(key);
  }
}

void CanonicalReader::skip_array(int depth) {
  if (depth == kMaxDepth) throw_format_error(where_, "JSON nested deeper than {}", kMaxDepth);
  expect("[");
  for (bool is_first = true; !take("]"); is_first = false) {
    if (!is_first) expect(",");
    skip_value(depth + 1);
  }
}

std::string CanonicalReader::object(std::string_view object) {
  const size_t begin = at_;
  if (!is_at('{')) refuse(fill_text("{}, a JSON object,", object));
  skip_object(1);
  return std::string(text_.substr(begin, at_ - begin));
}

void CanonicalReader::finish() const {
  if (at_ != text_.size()) refuse("the end");
}

}  // namespace thimble
