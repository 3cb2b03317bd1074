// text_tokens.h: a text file as a token stream: its documents, each preceded by BOS.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "eval/tokenizers/tokenizer.h"

namespace thimble {

// The line that separates two documents.
constexpr std::string_view kDocumentSeparator = "<|doc|>";

// The documents between separator lines, newlines stripped at both ends of each, empty ones left out.
std::vector<std::string_view> split_documents(std::string_view text);

// The token in front of a document (tokenizer_model.h); FormatError when there is none.
Token document_start_token(const Tokenizer& tokenizer);

// What is wrong with a text that is not UTF-8 from that byte on.
std::string not_utf8_text(uint64_t at);

// BOS, document, BOS, document, ... FormatError naming `path` and the byte where `text` is not UTF-8.
std::vector<Token> tokens_of_text(const Tokenizer& tokenizer, std::string_view text, const std::string& path);

// tokens_of_text() of a file.
std::vector<Token> tokens_of_text_file(const Tokenizer& tokenizer, const std::string& path);

}  // namespace thimble
