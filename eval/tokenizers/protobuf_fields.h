// protobuf_fields.h: the fields of a protobuf message, as SentencePiece models are; bounded, whatever the bytes are.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

struct ProtobufField {
  enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kFixed32 = 5 };

  uint64_t number = 0;
  uint32_t wire_type = 0;
  uint64_t value = 0;  // of a varint or a fixed-width field
  Bytes bytes = {};    // of a length-delimited field
};

// Calls visit(field) for every field of one message. FormatErrors(path) where one runs off the end or is of another
// wire type.
void for_each_protobuf_field(Bytes message, const std::string& path,
                             const std::function<void(const ProtobufField&)>& visit);

}  // namespace thimble
