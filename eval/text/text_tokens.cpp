// text_tokens.cpp: splits a text into documents and tokenizes them.
#include "eval/text/text_tokens.h"

#include "eval/tokenizers/utf8.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

std::string_view strip_newlines(std::string_view text) {
  size_t first = text.find_first_not_of('\n');
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of('\n') - first + 1);
}

}  // namespace

std::vector<std::string_view> split_documents(std::string_view text) {
  std::vector<std::string_view> documents;
  auto add = [&](size_t begin, size_t end) {
    std::string_view document = strip_newlines(text.substr(begin, end - begin));
    if (!document.empty()) documents.push_back(document);
  };
  size_t document_begin = 0;
  for (size_t line_begin = 0; line_begin < text.size();) {
    size_t line_end = std::min(text.find('\n', line_begin), text.size());
    if (text.substr(line_begin, line_end - line_begin) == kDocumentSeparator) {
      add(document_begin, line_begin);
      document_begin = line_end;
    }
    line_begin = line_end + 1;
  }
  add(document_begin, text.size());
  return documents;
}

std::string not_utf8_text(uint64_t at) {
  return "not UTF-8 at byte " + std::to_string(at) + "; only UTF-8 text can be tokenized";
}

Token document_start_token(const Tokenizer& tokenizer) {
  if (auto start = tokenizer.document_start()) return *start;
  throw FormatError(tokenizer.path(), "no BOS piece, and token 1 stands for text; documents need a token between them");
}

std::vector<Token> tokens_of_text(const Tokenizer& tokenizer, std::string_view text, const std::string& path) {
  if (auto at = first_invalid_utf8(text)) throw FormatError(path, not_utf8_text(*at));
  const Token start = document_start_token(tokenizer);
  std::vector<Token> tokens;
  for (std::string_view document : split_documents(text)) {
    tokens.push_back(start);
    std::vector<Token> part = tokenizer.encode(document);
    tokens.insert(tokens.end(), part.begin(), part.end());
  }
  return tokens;
}

std::vector<Token> tokens_of_text_file(const Tokenizer& tokenizer, const std::string& path) {
  MappedFile file(path);
  return tokens_of_text(tokenizer, as_text(file.bytes()), path);
}

}  // namespace thimble
