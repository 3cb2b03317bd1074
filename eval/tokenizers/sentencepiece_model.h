// sentencepiece_model.h: a SentencePiece model; the library does the work.
#pragma once

#include <memory>

#include "eval/tokenizers/tokenizer_model.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

// `file` is the file's bytes; FormatError naming `path` when it is no usable model.
std::unique_ptr<TokenizerModel> read_sentencepiece_model(Bytes file, const std::string& path);

}  // namespace thimble
