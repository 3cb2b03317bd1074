// text_regex.cpp: checks the syntax, compiles, matches with limits.
#include "eval/tokenizers/text_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

#include "eval/tokenizers/unicode_versions.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr uint32_t kMostHeapKiB = 20'000;   // of the interpreter, where there is no just-in-time compiler
constexpr size_t kMostJitStack = 32 << 20;  // reserved only where a match needs it
constexpr size_t kMostStarts = 64;          // places that one call tries, so that the clock is looked at between

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Goes through an expression and gives it as PCRE2 should read it; says what it refuses through `refused`.
class SyntaxReader {
 public:
  explicit SyntaxReader(std::string_view source) : source_(source) {}

  std::string refused;

  std::string translated() {
    while (at_ < source_.size() && refused.empty()) in_class_ ? read_class() : read_outside();
    return result_;
  }

 private:
  char peek(size_t ahead) const { return at_ + ahead < source_.size() ? source_[at_ + ahead] : '\0'; }
  void copy(size_t count) {
    result_ += source_.substr(at_, count);
    at_ += count;
  }

  void read_outside() {
    switch (peek(0)) {
      case '\\': return read_escape();
      case '[':
        copy(1);
        in_class_ = true;
        if (peek(0) == '^') copy(1);
        if (peek(0) == ']') refused = "a class that begins with ]";
        return;
      case '(': return read_group();
      case '^': refused = "the anchor ^"; return;
      case '$': refused = "the anchor $"; return;
      case '{':
        if (peek(1) == ',') refused = "{,";  // from zero on to one library, literal to the other
        return copy(1);
      case '}':
        copy(1);
        if (peek(0) == '+') refused = "}+";  // possessive to one library, a repeated repeat to the other
        return;
      default: return copy(1);
    }
  }

  void read_class() {
    const char c = peek(0);
    if (c == '\\') return read_escape();
    if (c == '[') refused = "[ in a class";
    if (c == '&' && peek(1) == '&') refused = "&& in a class";
    if (c == ']') in_class_ = false;
    copy(1);
  }

  void read_group() {
    if (peek(1) == '*') refused = "(*";
    if (peek(1) != '?') return copy(1);
    for (std::string_view known : {"(?:", "(?=", "(?!", "(?i:"})
      if (source_.substr(at_).starts_with(known)) return copy(known.size());
    refused = std::string(source_.substr(at_, 3));
  }

  void read_escape() {
    const char c = peek(1);
    if (c == 's' || c == 'S') {  // PCRE2's \s also takes U+180E
      result_ += c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
      at_ += 2;
    } else if (c == 'p' || c == 'P') {
      read_property();
    } else if (std::string_view("dDrnt").find(c) != std::string_view::npos ||
               std::ispunct(static_cast<unsigned char>(c)) != 0) {
      copy(2);
    } else {
      refused = std::string(source_.substr(at_, 2));
    }
  }

  // General categories, of one or two letters.
  void read_property() {
    const size_t close = source_.find('}', at_);
    const size_t letters = close == std::string_view::npos || peek(2) != '{' ? 0 : close - at_ - 3;
    const bool known = letters >= 1 && letters <= 2 && std::string_view("LMNPSZC").find(peek(3)) != std::string::npos;
    if (known) return copy(close + 1 - at_);
    refused = std::string(source_.substr(at_, std::min<size_t>(letters + 4, 24)));
  }

  std::string_view source_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string result_;
};

}  // namespace

struct TextRegex::Code {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;

  Code() = default;
  Code(const Code&) = delete;
  Code& operator=(const Code&) = delete;
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

TextRegex::TextRegex(const std::string& expression, const std::string& path, const std::string& object)
    : path_(path), expression_(expression) {
  auto fail = [&](const std::string& what) {
    throw FormatError(path, object + ": the regular expression '" + expression.substr(0, 200) + "' " + what);
  };
  if (expression.empty() || expression.size() > kMostBytes)
    fail("has " + std::to_string(expression.size()) + " B, allowed are 1 to " + std::to_string(kMostBytes));
  SyntaxReader syntax(expression);
  const std::string pattern = syntax.translated();
  if (!syntax.refused.empty())
    fail("has " + syntax.refused +
         ", which is not known; known are classes, \\s \\d \\r \\n \\t, \\p{} of general categories, groups (?: (?i: "
         "(?= "
         "(?!, alternatives and repeats");
  auto code = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  code->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT, &error, &offset, nullptr);
  if (!code->code) fail("is none: " + message_of(error));
  uint32_t matches_empty = 0;
  pcre2_pattern_info(code->code, PCRE2_INFO_MATCHEMPTY, &matches_empty);
  if (matches_empty != 0) fail("can match nothing; each match must have a character");
  pcre2_jit_compile(code->code, PCRE2_JIT_COMPLETE);  // where it fails, the interpreter does the work
  code->context = pcre2_match_context_create(nullptr);
  if (!code->context) throw std::bad_alloc();
  pcre2_set_match_limit(code->context, kMostSteps);
  pcre2_set_heap_limit(code->context, kMostHeapKiB);
  code_ = std::move(code);
}

namespace {

// What one thread needs to match. The stack of the just-in-time compiler's code is the thread's own until that is too
// small.
class Matcher {
 public:
  Matcher(const pcre2_code* code, const pcre2_match_context* limits, std::string_view text)
      : code_(code), text_(text), data_(pcre2_match_data_create(1, nullptr)) {
    context_ = pcre2_match_context_copy(const_cast<pcre2_match_context*>(limits));
    if (data_ && context_) return;
    free_all();
    throw std::bad_alloc();
  }
  Matcher(const Matcher&) = delete;
  Matcher& operator=(const Matcher&) = delete;
  ~Matcher() { free_all(); }

  // PCRE2's count of groups or its error, of the first match that starts from `begin` to `last`.
  int match(size_t begin, size_t last) {
    pcre2_set_offset_limit(context_, last);
    const int count = match_with_stack(begin);
    if (count != PCRE2_ERROR_JIT_STACKLIMIT || stack_) return count;
    stack_ = pcre2_jit_stack_create(32 << 10, kMostJitStack, nullptr);
    if (!stack_) throw std::bad_alloc();
    pcre2_jit_stack_assign(context_, nullptr, stack_);
    return match_with_stack(begin);
  }
  TextSpan span() const {
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data_);
    return {ends[0], ends[1]};
  }

 private:
  int match_with_stack(size_t begin) {
    return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), begin, PCRE2_NO_UTF_CHECK,
                       data_, context_);
  }
  void free_all() {
    pcre2_match_context_free(context_);
    pcre2_jit_stack_free(stack_);
    pcre2_match_data_free(data_);
  }

  const pcre2_code* code_;
  std::string_view text_;
  pcre2_match_data* data_;
  pcre2_match_context* context_ = nullptr;
  pcre2_jit_stack* stack_ = nullptr;
};

double seconds_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

}  // namespace

MatchTime::MatchTime(size_t text_bytes)
    : allowed_seconds_(kLeastSeconds + kSecondsPerByte * static_cast<double>(text_bytes)),
      begin_(seconds_of(CLOCK_MONOTONIC_COARSE)),
      thread_begin_(seconds_of(CLOCK_THREAD_CPUTIME_ID)) {}

bool MatchTime::is_over() const {
  // The thread's own clock is a system call; no thread has more time than the machine.
  if (seconds_of(CLOCK_MONOTONIC_COARSE) - begin_ <= allowed_seconds_) return false;
  return seconds_of(CLOCK_THREAD_CPUTIME_ID) - thread_begin_ > allowed_seconds_;
}

std::vector<TextSpan> TextRegex::matches(std::string_view text, const MatchTime& time) const {
  std::string known;
  text = with_known_characters(text, known);
  Matcher matcher(code_->code, code_->context, text);
  auto fail = [&](size_t at, const std::string& why) {
    throw FormatError(path_, "the regular expression '" + expression_.substr(0, 200) + "' cannot be matched at byte " +
                                 std::to_string(at) + " of a text: " + why);
  };
  std::vector<TextSpan> found;
  for (size_t begin = 0; begin < text.size();) {
    size_t last = begin + std::min(kMostStarts, text.size() - begin);
    while (last < text.size() && (static_cast<uint8_t>(text[last]) & 0xc0) == 0x80) ++last;
    const int count = matcher.match(begin, last);
    if (count < 0 && count != PCRE2_ERROR_NOMATCH) fail(begin, message_of(count));
    if (count > 0) found.push_back(matcher.span());
    if (time.is_over()) fail(begin, "it takes too long");
    begin = count > 0 ? found.back().end : last;
  }
  return found;
}

}  // namespace thimble
