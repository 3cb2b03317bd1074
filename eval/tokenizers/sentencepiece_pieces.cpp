// sentencepiece_pieces.cpp: reads the ModelProto of sentencepiece_model.proto; of fields that come again, the last
// counts.
#include "eval/tokenizers/sentencepiece_pieces.h"

#include <bit>
#include <map>

#include "eval/tokenizers/protobuf_fields.h"
#include "eval/tokenizers/tokenizer_check.h"

namespace thimble {
namespace {

SentencePiece read_piece(Bytes message, const std::string& path) {
  constexpr uint64_t kText = 1, kScore = 2, kType = 3;
  SentencePiece piece;
  for_each_protobuf_field(message, path, [&](const ProtobufField& field) {
    if (field.number == kText && field.wire_type == ProtobufField::kLengthDelimited) piece.text = as_text(field.bytes);
    if (field.number == kScore && field.wire_type == ProtobufField::kFixed32)
      piece.score = std::bit_cast<float>(static_cast<uint32_t>(field.value));
    const auto type = static_cast<SentencePieceType>(field.value);
    if (field.number == kType && type >= SentencePieceType::kNormal && type <= SentencePieceType::kByte)
      piece.type = type;
  });
  return piece;
}

void read_trainer(Bytes message, const std::string& path, SentencePieces& model) {
  constexpr uint64_t kModelType = 3, kHasBytes = 35, kUnknownText = 44, kBos = 46, kEos = 47, kPad = 48;
  const std::map<uint64_t, std::string> types = {{1, "unigram"}, {2, "bpe"}, {3, "word"}, {4, "char"}};
  for_each_protobuf_field(message, path, [&](const ProtobufField& field) {
    if (field.number == kModelType && types.contains(field.value)) model.model_type = types.at(field.value);
    if (field.number == kHasBytes) model.has_bytes = field.value != 0;
    if (field.number == kUnknownText) model.unknown_text = as_text(field.bytes);
    if (field.number == kBos) model.bos = as_text(field.bytes);
    if (field.number == kEos) model.eos = as_text(field.bytes);
    if (field.number == kPad) model.pad = as_text(field.bytes);
  });
}

void read_normalizer(Bytes message, const std::string& path, SentencePieces& model) {
  constexpr uint64_t kCharsmap = 2, kAddsSpace = 3, kTrimsSpaces = 4;
  for_each_protobuf_field(message, path, [&](const ProtobufField& field) {
    if (field.number == kCharsmap && field.wire_type == ProtobufField::kLengthDelimited) model.charsmap = field.bytes;
    if (field.number == kAddsSpace) model.adds_space = field.value != 0;
    if (field.number == kTrimsSpaces) model.trims_spaces = field.value != 0;
  });
}

// Does it change characters?
bool has_charsmap(Bytes normalizer, const std::string& path) {
  SentencePieces read;
  read_normalizer(normalizer, path, read);
  return read.has_charsmap();
}

}  // namespace

SentencePieces read_sentencepiece_pieces(Bytes model, const std::string& path) {
  constexpr uint64_t kPiece = 1, kTrainer = 2, kNormalizer = 3, kDenormalizer = 5;
  check_tokenizer_file(model, path);
  SentencePieces read;
  read.model_type = "unigram";
  for_each_protobuf_field(model, path, [&](const ProtobufField& field) {
    if (field.wire_type != ProtobufField::kLengthDelimited) return;
    if (field.number == kPiece) read.pieces.push_back(read_piece(field.bytes, path));
    if (field.number == kTrainer) read_trainer(field.bytes, path, read);
    if (field.number == kNormalizer) read_normalizer(field.bytes, path, read);
    if (field.number == kDenormalizer) read.has_denormalizer = has_charsmap(field.bytes, path);
  });
  return read;
}

}  // namespace thimble
