// gguf_text_rules.h: how llama.cpp names what happens to a text before byte-pair encoding, and what a tokenizer.json of
// the models that have it says.
#pragma once

#include <span>

namespace thimble {

// Of byte-level BPE.
struct GgufTextRules {
  const char* name;                  // "tokenizer.ggml.pre"
  const char* pre_tokenizer;         // JSON, as the two that follow
  const char* normalizer = "null";   // llama.cpp itself has none
  bool ignores_merges = false;       // "ignore_merges" of the model
  bool usually_begins_text = false;  // is BOS put in front of a text where no "tokenizer.ggml.add_bos_token" says it?
};
// Of several with one pre-tokenizer, the first has its usual name.
std::span<const GgufTextRules> gguf_text_rules();

// "tokenizer.ggml.model": byte-level BPE, and SentencePiece.
extern const char* const kGgufByteLevelModel;
extern const char* const kGgufSentencePieceModel;

}  // namespace thimble
