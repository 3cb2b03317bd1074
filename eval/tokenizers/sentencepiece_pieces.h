// sentencepiece_pieces.h: what a SentencePiece model says, which the library does not tell: for writers of other
// formats, and for the reader that does without the library (sentencepiece_bpe.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// As sentencepiece_model.proto numbers them.
enum class SentencePieceType : uint32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct SentencePiece {
  std::string text;
  float score = 0;  // finite; of a byte-pair encoding, higher ones merge first
  SentencePieceType type = SentencePieceType::kNormal;
};

struct SentencePieces {
  std::vector<SentencePiece> pieces;  // (V)
  std::string model_type;             // "unigram", "bpe", "word", "char"
  bool adds_space = true;             // in front of a text
  bool trims_spaces = true;           // at both ends, and makes one of several
  bool has_bytes = false;             // what is no piece is spelled in byte pieces
  Bytes charsmap;                     // changes characters, as NFKC does; in the file's bytes, may be empty
  bool has_denormalizer = false;      // changes what is decoded
  std::string bos = "<s>", eos = "</s>", pad = "<pad>";
  std::string unknown_text = " \xE2\x81\x87 ";  // what the unknown piece is decoded to

  bool has_charsmap() const { return !charsmap.empty(); }
};

// Of a model that Tokenizer reads; FormatErrors(path) as of it.
SentencePieces read_sentencepiece_pieces(Bytes model, const std::string& path);

}  // namespace thimble
