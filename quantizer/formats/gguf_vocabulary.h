// gguf_vocabulary.h: a tokenizer as llama.cpp spells it: what a GGUF file gets (gguf_tokenizer.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/tokenizers/sentencepiece_pieces.h"
#include "eval/tokenizers/tokenizer_json.h"

namespace thimble {

using GgufTokenType = SentencePieceType;  // llama.cpp has its numbers

struct GgufToken {
  std::string text = {};
  GgufTokenType type = GgufTokenType::kNormal;
  float score = 0;  // of SentencePiece: of neighbours that together spell a token, those of the highest merge first
};

struct GgufVocabulary {
  std::string model, pre;
  std::vector<GgufToken> tokens = {};
  std::vector<std::string> merges = {};  // of byte-level BPE: "left right", by rank
  std::optional<Token> bos = {}, eos = {}, unknown = {}, padding = {};
  bool adds_bos = false;
  std::optional<bool> adds_space = {};  // in front of a text; only where spaces are marks
};

// Of SentencePiece, tokens of more bytes are neither written nor read: they are cut in two in every way. The longest
// that is known has 93.
constexpr size_t kMostMergedBytes = 256;

// A SentencePiece model. UsageErrors(path) for one that is no byte-pair encoding with a token for every byte, and for
// one that changes texts: llama.cpp would make other tokens.
GgufVocabulary sentencepiece_vocabulary(const SentencePieces& model, const std::string& path);

// A tokenizer.json with marks for spaces; `json` is the same file. Its merges become scores. UsageErrors(path) as
// above, and for merges that no scores stand for.
GgufVocabulary marks_vocabulary(const TokenizerJson& tokenizer, const Json& json, const std::string& path);

}  // namespace thimble
