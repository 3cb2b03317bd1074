// fuzz_tokenizer.cpp: libFuzzer target: any bytes as a SentencePiece model, from memory and from a file
// (fuzz_tokenizer_json.cpp has the other kind).
// An accepted model must tokenize, decode and count bytes without leaving its memory.
#include <cstdlib>

#include "eval/text/byte_table.h"
#include "eval/text/text_tokens.h"
#include "eval/tokenizers/tokenizer.h"
#include "tests/fuzz/memory_file.h"

namespace {

constexpr std::string_view kTexts[] = {
    "The cat  sat\n on <the> mat.", "\xC3\xA9\xE6\x97\xA5\xF0\x9F\x98\x80 \xEF\xAC\x81",
    "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
    std::string_view("\0\x01\x7F", 3)};

void use(const thimble::Tokenizer& tokenizer) {
  const thimble::ByteTable table(tokenizer);
  for (std::string_view text : kTexts) {
    std::vector<thimble::Token> tokens = tokenizer.encode(text);
    tokenizer.decode(tokens);
    if (table.bytes_of_targets(tokens) < 0) std::abort();
  }
  thimble::tokens_of_text(tokenizer, "a\n<|doc|>\nb", "text");
}

void load_as_file(thimble::Bytes bytes) {
  thimble::MemoryFile file(bytes);
  try {
    thimble::Tokenizer::load(file.path());
  } catch (const thimble::Error&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  thimble::Bytes bytes(reinterpret_cast<const std::byte*>(data), size);
  try {
    use(thimble::Tokenizer(bytes, "fuzz"));
  } catch (const thimble::Error&) {
  }
  load_as_file(bytes);
  return 0;
}
