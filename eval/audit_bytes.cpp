// audit_bytes.cpp: counts the text's bytes a second way, from what the library decodes and from the source text.
#include <fmt/format.h>

#include <algorithm>

#include "eval/audit.h"
#include "eval/byte_table.h"
#include "eval/text_tokens.h"

namespace thimble {
namespace {

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";
// Tokens decoded at a time: bounds what the library holds, and what one undecodable byte hides.
constexpr int64_t kStretchTokens = 1024;

struct ByteComparison {
  int64_t counted = 0;      // by the byte table, in the stretches compared
  int64_t decoded = 0;      // bytes of the decoded text of the same stretches
  int64_t stretches = 0;    // compared
  int64_t undecodable = 0;  // stretches left out: they hold bytes that are not UTF-8, or U+FFFD itself
};

// Compares table and library over tokens[1], tokens[2], ...
class ByteComparer {
 public:
  ByteComparer(const Tokenizer& tokenizer, const ByteTable& table, std::span<const uint16_t> tokens)
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
  // The library drops the spaces that decoding begins with, and needs whole characters: a stretch may begin only
  // after a boundary or a piece with text of its own.
  bool can_cut_after(uint16_t token) const {
    if (table_.is_boundary(token)) return true;
    return tokenizer_.kind(token) == PieceKind::kText &&
           tokenizer_.decode({&token, 1}).find_first_not_of(' ') != std::string::npos;
  }

  // Compares from `begin` to a boundary, or to a place to cut after about kStretchTokens. Returns where it ended.
  int64_t compare_stretch(int64_t begin) {
    const auto stream_end = static_cast<int64_t>(tokens_.size());
    int64_t end = begin;
    while (end < stream_end && !table_.is_boundary(tokens_[end]) &&
           (end - begin < kStretchTokens || !can_cut_after(tokens_[end - 1])))
      ++end;
    int64_t compared_end = end;
    // A stream may stop within a character: its last byte tokens count one byte each and are not decoded.
    if (end == stream_end)
      while (compared_end > begin && tokenizer_.kind(tokens_[compared_end - 1]) == PieceKind::kByte) --compared_end;
    if (compared_end > begin) compare(begin, compared_end);
    return end;
  }

  void compare(int64_t begin, int64_t end) {
    // With the token before, so that the stretch's first space is there; that token's own text is taken off again.
    const int64_t first = table_.is_boundary(tokens_[begin - 1]) ? begin : begin - 1;
    std::string text = tokenizer_.decode(tokens_.subspan(first, end - first));
    if (text.find(kReplacementCharacter) != std::string::npos) {
      ++result_.undecodable;
      return;
    }
    ++result_.stretches;
    result_.counted += table_.bytes_of_targets(tokens_.subspan(begin - 1, end - begin + 1));
    result_.decoded += static_cast<int64_t>(text.size());
    if (first < begin) result_.decoded -= static_cast<int64_t>(tokenizer_.decode(tokens_.subspan(first, 1)).size());
  }

  const Tokenizer& tokenizer_;
  const ByteTable& table_;
  std::span<const uint16_t> tokens_;
  ByteComparison result_;
};

}  // namespace

AuditCheck audit_byte_total(const BpbReport& report, const Tokenizer& tokenizer, std::span<const uint16_t> tokens) {
  const ByteTable table(tokenizer);
  std::span<const uint16_t> scored = tokens.first(report.targets + 1);
  const int64_t counted = table.bytes_of_targets(scored);
  const ByteComparison comparison = ByteComparer(tokenizer, table, scored).run();
  AuditCheck check{.name = "byte total", .passed = false, .detail = {}, .measured = 0};
  const int64_t excess = std::max(report.text_bytes - counted, comparison.counted - comparison.decoded);
  check.measured = static_cast<double>(excess);
  check.passed = report.text_bytes == counted && comparison.counted == comparison.decoded &&
                 (comparison.stretches > 0 || counted == 0);
  check.detail = fmt::format(
      "reported {} B, counted {} B; in {} stretches of text {} B counted, {} B decoded; {} stretches that are not "
      "UTF-8 "
      "not compared",
      report.text_bytes, counted, comparison.stretches, comparison.counted, comparison.decoded, comparison.undecodable);
  return check;
}

AuditCheck audit_source_text(const BpbReport& report, const Tokenizer& tokenizer, std::span<const uint16_t> tokens,
                             const SourceText& source) {
  AuditCheck check{.name = "source text", .passed = false, .detail = {}, .measured = 0};
  const std::vector<uint16_t> expected = tokens_of_text(tokenizer, source.text, source.path);
  auto [found, wanted] = std::mismatch(tokens.begin(), tokens.end(), expected.begin(), expected.end());
  if (found != tokens.end() || wanted != expected.end()) {
    check.detail = fmt::format("{} tokenizes to {} tokens, {} were given; they differ at position {}", source.path,
                               expected.size(), tokens.size(), found - tokens.begin());
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
  const int64_t counted = table.bytes_of_targets(tokens.first(scored_tokens));
  check.measured = text_bytes > 0 ? static_cast<double>(counted) / static_cast<double>(text_bytes) : 0;
  check.passed = counted <= text_bytes;
  check.detail = fmt::format("the tokens are those of {}; {} B counted for the {} B of its {} documents scored in full",
                             source.path, counted, text_bytes, documents);
  return check;
}

}  // namespace thimble
