// gguf_tokenizer.h: a byte-level tokenizer.json as llama.cpp spells it: tokens, their types, merges, the name of what
// cuts texts, special tokens.
#pragma once

#include <string>

#include "quantizer/checkpoints/gguf_writer.h"

namespace thimble {

// `vocabulary`: tokens of the model; the tokenizer's are padded. `config`: where "bos_token_id" and the like stand.
// Errors of the tokenizer's reader; UsageErrors(path) for a tokenizer that is not byte-level, for one that cuts or
// changes texts in a way that llama.cpp has no name for that is known here, and for one with more tokens than the
// model.
void add_gguf_tokenizer(const std::string& path, int64_t vocabulary, const Json& config, GgufKeys& keys);

}  // namespace thimble
