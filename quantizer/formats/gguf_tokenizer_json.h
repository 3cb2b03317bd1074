// gguf_tokenizer_json.h: the tokenizer that a GGUF file holds, as the tokenizer.json that it stands for.
//
//   tokenizer.ggml.model         byte-level BPE or SentencePiece (gguf_text_rules.h)
//   tokenizer.ggml.pre           of byte-level BPE: what cuts texts, by its name
//   tokenizer.ggml.tokens        (V) texts
//   tokenizer.ggml.token_type    (V) GgufTokenType (gguf_vocabulary.h); without it all are normal
//   tokenizer.ggml.merges        of byte-level BPE: "left right", by rank
//   tokenizer.ggml.scores        of SentencePiece, (V): of two neighbours that make a token, those of the highest merge
//   tokenizer.ggml.bos_token_id, add_bos_token, add_space_prefix
#pragma once

#include <map>
#include <optional>
#include <string>

#include "eval/tokenizers/tokenizer.h"
#include "quantizer/formats/gguf.h"

namespace thimble {

// FormatErrors(path) name the key, or the token, and what is allowed; for a kind that is not known, --tokenizer is
// named as the way out.
Json gguf_tokenizer_json(const GgufFile& file, const std::string& path);
Tokenizer gguf_tokenizer(const GgufFile& file, const std::string& path);

// Is this a GGUF file whose tokenizer is of a known kind?
bool holds_gguf_tokenizer(const std::string& path);
// Why the tokenizer of a GGUF file cannot be read, "holds no tokenizer" or the key and what is known; nullopt where it
// can, and of other files.
std::optional<std::string> unknown_gguf_tokenizer(const std::string& path);

// The tokenizer of a file, or in a GGUF file. Throws as Tokenizer::load() and gguf_tokenizer_json().
Tokenizer load_tokenizer(const std::string& path);

// The same as files of a folder that Hugging Face's library loads, texts by name: tokenizer.json,
// tokenizer_config.json, and chat_template.jinja where there is a template. None of a file without a tokenizer that can
// be read.
std::map<std::string, std::string> gguf_tokenizer_files(const std::string& path);

// The chat template of a GGUF file; empty: none.
std::string gguf_chat_template(const std::string& path);

}  // namespace thimble
