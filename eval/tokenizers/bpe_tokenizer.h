// bpe_tokenizer.h: a tokenizer.json of Hugging Face whose model is a byte-pair encoding: byte-level, or of characters
// with byte fallback.
#pragma once

#include <memory>

#include "eval/tokenizers/tokenizer_model.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

constexpr uint64_t kMaxTokenizerJsonBytes = 64 << 20;

// `file` is the file's bytes; FormatError naming `path`, the key and the value for whatever is not known.
std::unique_ptr<TokenizerModel> read_tokenizer_json(Bytes file, const std::string& path);

}  // namespace thimble
