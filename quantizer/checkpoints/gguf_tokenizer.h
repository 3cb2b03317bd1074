// gguf_tokenizer.h: a tokenizer as llama.cpp spells it: tokens, their types, merges or scores, the name of what cuts
// texts, special tokens, the chat template.
#pragma once

#include <string>

#include "quantizer/checkpoints/gguf_writer.h"

namespace thimble {

// `path`: a tokenizer.json, a SentencePiece model, or a GGUF file that holds a tokenizer. `vocabulary`: tokens of the
// model; the tokenizer's are padded. `config`: where "bos_token_id" and the like stand. Errors of the tokenizer's
// reader; UsageErrors(path) for one that cuts or changes texts in a way that llama.cpp has no name for that is known
// here, for what gguf_vocabulary.h refuses, and for one with more tokens than the model.
void add_gguf_tokenizer(const std::string& path, int64_t vocabulary, const Json& config, GgufKeys& keys);

}  // namespace thimble
