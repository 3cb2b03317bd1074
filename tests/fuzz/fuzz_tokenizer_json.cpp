// fuzz_tokenizer_json.cpp: libFuzzer target: any bytes as a tokenizer.json, then a zero byte and a text. An accepted
// tokenizer gives tokens of its vocabulary, the same ones again from its cache, and their text and bytes; or says why
// it cannot, as it must for a text that is not UTF-8.
#include <algorithm>
#include <cstdlib>
#include <optional>

#include "eval/text/byte_table.h"
#include "eval/text/special_tokens.h"
#include "eval/tokenizers/tokenizer.h"
#include "eval/tokenizers/utf8.h"
#include "runtime/base/error.h"

namespace {

using namespace thimble;

constexpr size_t kMostTextBytes = 2048;  // what is slow for a long text is slow for a short one too
constexpr std::string_view kText = "They'd seen  <s>the\tK\u00fcste\n\n \u6d77 1234 \U0001f600e\u0301";

std::optional<std::vector<Token>> encoded(const Tokenizer& tokenizer, std::string_view text) {
  try {
    return tokenizer.encode(text);
  } catch (const FormatError&) {
    return std::nullopt;
  }
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  const std::optional<std::vector<Token>> tokens = encoded(tokenizer, text);
  if (first_invalid_utf8(text) && tokens) std::abort();
  if (!tokens) return;
  for (Token token : *tokens)
    if (token < 0 || token >= tokenizer.vocab_size()) std::abort();
  if (encoded(tokenizer, text) != tokens) std::abort();
  if (first_invalid_utf8(tokenizer.decode(*tokens))) std::abort();
  if (ByteTable(tokenizer).bytes_of_targets(*tokens) < 0) std::abort();
  const SpecialTokens special = find_special_tokens(tokenizer, tokenizer.vocab_size(), Json::object(), "");
  if (std::ranges::adjacent_find(special.all, std::ranges::greater_equal()) != special.all.end()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(input.find('\0'), size);
  try {
    const Tokenizer tokenizer(as_bytes_of(input.substr(0, end)), "fuzz/tokenizer.json");
    use(tokenizer, kText);
    if (end < size) use(tokenizer, input.substr(end + 1, kMostTextBytes));
  } catch (const FormatError&) {
  }
  return 0;
}
