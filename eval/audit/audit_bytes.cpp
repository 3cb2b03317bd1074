// audit_bytes.cpp: counts the text's bytes a second way, from what the library decodes and from the source text.
#include <fmt/format.h>

#include <algorithm>

#include "eval/audit/audit.h"
#include "eval/text/byte_table.h"
#include "eval/text/text_tokens.h"
#include "eval/tokenizers/utf8.h"
#include "runtime/base/count_text.h"

namespace thimble {
namespace {

// Tokens decoded at a time: bounds what the library holds.
constexpr int64_t kStretchTokens = 1024;
// The library decodes a byte that is part of no character to U+FFFD, three bytes in UTF-8.
constexpr int64_t kReplacementBytes = 3;

struct ByteComparison {
  int64_t counted = 0;    // by the byte table
  int64_t decoded = 0;    // of the decoded text, each byte that is not UTF-8 as the one that it is
  int64_t stray = 0;      // of these, bytes that are not UTF-8
  int64_t stretches = 0;  // compared
};

int64_t invalid_bytes(std::string_view text) {
  int64_t count = 0;
  for (auto at = first_invalid_utf8(text); at; at = first_invalid_utf8(text)) {
    ++count;
    text.remove_prefix(*at + 1);
  }
  return count;
}

// Compares table and library over tokens[1], tokens[2], ...
class ByteComparer {
 public:
  ByteComparer(const Tokenizer& tokenizer, const ByteTable& table, std::span<const Token> tokens)
      : tokenizer_(tokenizer), table_(table), tokens_(tokens) {}

  ByteComparison run() {
    const auto end = static_cast<int64_t>(tokens_.size());
    for (int64_t begin = 1; begin < end;) {
      if (table_.is_boundary(tokens_[begin]) || !can_cut_after(tokens_[begin - 1])) {
        ++begin;
      } else {
        begin = compare_stretch(begin);
      }
    }
    return result_;
  }

 private:
  // The library drops the spaces that decoding begins with: a stretch may begin only after a boundary or after text of
  // its own.
  bool can_cut_after(Token token) const {
    return table_.is_boundary(token) || is_byte(token) ||
           tokenizer_.decode({&token, 1}).find_first_not_of(' ') != std::string::npos;
  }

  bool is_byte(Token token) const { return tokenizer_.kind(token) == PieceKind::kByte; }

  // Compares from `begin` to a boundary, or to a place to cut after about kStretchTokens. Returns where it ended.
  int64_t compare_stretch(int64_t begin) {
    const auto stream_end = static_cast<int64_t>(tokens_.size());
    int64_t end = begin;
    while (end < stream_end && !table_.is_boundary(tokens_[end]) &&
           (end - begin < kStretchTokens || !can_cut_after(tokens_[end - 1])))
      ++end;
    compare(begin, end);
    return end;
  }

  void compare(int64_t begin, int64_t end) {
    // A space that the stretch begins with is decoded only after text: with the token before, whose own text is taken
    // off again. Other tokens have no such space, and may make other characters together with the one before.
    const bool has_context = !table_.is_boundary(tokens_[begin - 1]) && table_.has_leading_space(tokens_[begin]);
    const int64_t first = has_context ? begin - 1 : begin;
    const int64_t stray = stray_bytes(tokens_.subspan(begin, end - begin));
    ++result_.stretches;
    result_.counted += table_.bytes_of_targets(tokens_.subspan(begin - 1, end - begin + 1));
    result_.stray += stray;
    result_.decoded += decoded_bytes(first, end) - stray * (kReplacementBytes - 1);
    if (has_context) result_.decoded -= decoded_bytes(first, begin);
  }

  int64_t decoded_bytes(int64_t begin, int64_t end) const {
    return static_cast<int64_t>(tokenizer_.decode(tokens_.subspan(begin, end - begin)).size());
  }

  // Bytes that are part of no character.
  int64_t stray_bytes(std::span<const Token> tokens) const {
    std::string text;
    for (Token token : tokens) text += tokenizer_.text_of(token);
    return invalid_bytes(text);
  }

  const Tokenizer& tokenizer_;
  const ByteTable& table_;
  std::span<const Token> tokens_;
  ByteComparison result_;
};

}  // namespace

AuditCheck audit_byte_total(const BpbReport& report, const Tokenizer& tokenizer, std::span<const Token> tokens) {
  const ByteTable table(tokenizer);
  std::span<const Token> scored = tokens.first(report.targets + 1);
  const int64_t counted_bytes = table.bytes_of_targets(scored);
  const ByteComparison comparison = ByteComparer(tokenizer, table, scored).run();
  const int64_t excess = std::max(report.text_bytes - counted_bytes, comparison.counted - comparison.decoded);
  AuditCheck check{
      .name = "byte total",
      .passed = report.text_bytes == counted_bytes && comparison.counted == comparison.decoded &&
                (comparison.stretches > 0 || counted_bytes == 0),
      .detail = fmt::format("reported {} B, counted {} B; in {} of text {} B counted, {} B decoded", report.text_bytes,
                            counted_bytes, counted(comparison.stretches, "stretch", "stretches"), comparison.counted,
                            comparison.decoded),
      .measured = static_cast<double>(excess)};
  if (comparison.stray > 0) check.detail += fmt::format(", {} of them not UTF-8", comparison.stray);
  return check;
}

AuditCheck audit_source_text(const BpbReport& report, const Tokenizer& tokenizer, std::span<const Token> tokens,
                             const SourceText& source) {
  AuditCheck check{.name = "source text", .passed = false, .detail = {}, .measured = 0};
  const std::vector<Token> expected = tokens_of_text(tokenizer, source.text, source.path);
  auto [found, wanted] = std::mismatch(tokens.begin(), tokens.end(), expected.begin(), expected.end());
  if (found != tokens.end() || wanted != expected.end()) {
    check.detail = fmt::format("{} has {}, the number given is {}; they differ at position {}", source.path,
                               counted(expected.size(), "token"), count_text(tokens.size()), found - tokens.begin());
    return check;
  }
  const ByteTable table(tokenizer);
  int64_t documents = 0, text_bytes = 0, scored_tokens = 0;
  for (std::string_view document : split_documents(source.text)) {
    auto end = scored_tokens + 1 + static_cast<int64_t>(tokenizer.encode(document).size());
    if (end > report.targets + 1) break;  // only documents scored to their end
    ++documents;
    text_bytes += static_cast<int64_t>(document.size());
    scored_tokens = end;
  }
  const int64_t counted_bytes = table.bytes_of_targets(tokens.first(scored_tokens));
  check.measured = text_bytes > 0 ? static_cast<double>(counted_bytes) / static_cast<double>(text_bytes) : 0;
  check.passed = counted_bytes <= text_bytes;
  check.detail = fmt::format("the tokens are those of {}; {} B counted for the {} B of {} scored in full", source.path,
                             counted_bytes, text_bytes, counted(documents, "document"));
  return check;
}

}  // namespace thimble
