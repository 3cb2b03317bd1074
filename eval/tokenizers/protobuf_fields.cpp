// protobuf_fields.cpp: walks a message wire type by wire type.
#include "eval/tokenizers/protobuf_fields.h"

namespace thimble {
namespace {

uint64_t read_varint(ByteCursor& cursor) {
  uint64_t value = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    auto byte = cursor.read<uint8_t>("protobuf varint");
    value |= uint64_t{byte & 0x7FU} << shift;
    if (byte < 0x80) return value;
  }
  throw FormatError(cursor.path(), "protobuf varint longer than 10 bytes");
}

ProtobufField read_field(ByteCursor& cursor) {
  uint64_t key = read_varint(cursor);
  ProtobufField field{.number = key >> 3, .wire_type = static_cast<uint32_t>(key & 7)};
  switch (field.wire_type) {
    case ProtobufField::kVarint: field.value = read_varint(cursor); break;
    case ProtobufField::kFixed64: field.value = cursor.read<uint64_t>("protobuf 64-bit field"); break;
    case ProtobufField::kFixed32: field.value = cursor.read<uint32_t>("protobuf 32-bit field"); break;
    case ProtobufField::kLengthDelimited: {
      uint64_t length = read_varint(cursor);
      field.bytes = cursor.take(length, "protobuf field " + std::to_string(field.number));
      break;
    }
    default:
      throw FormatError(cursor.path(), "protobuf wire type " + std::to_string(field.wire_type) +
                                           ", a SentencePiece model has only 0, 1, 2 and 5");
  }
  return field;
}

}  // namespace

void for_each_protobuf_field(Bytes message, const std::string& path,
                             const std::function<void(const ProtobufField&)>& visit) {
  ByteCursor cursor(message, path);
  while (!cursor.at_end()) visit(read_field(cursor));
}

}  // namespace thimble
