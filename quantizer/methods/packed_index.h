// packed_index.h: what packed results begin with.
//   8 B  length N of the index, little-endian
//   N B  index: JSON that says what follows
//   rest numbers as they lie in memory
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "runtime/base/byte_cursor.h"
#include "runtime/base/json.h"

namespace thimble {

constexpr const char* kPackedOrigin = "packed results";  // in errors

// Doubles survive the way through JSON text.
inline ByteVector start_with_index(const Json& index) {
  ByteVector bytes;
  const std::string text = index.dump();
  append_little_endian(bytes, static_cast<uint64_t>(text.size()));
  append_bytes(bytes, as_bytes_of(text));
  return bytes;
}

inline Json read_index(ByteCursor& cursor) {
  const auto length = cursor.read<uint64_t>("length of the index");
  return parse_json(cursor.take(length, "index"), kPackedOrigin);
}

// Fills `values` with the next numbers.
template <typename T>
void read_values(ByteCursor& cursor, std::span<T> values) {
  const Bytes bytes = cursor.take(values.size_bytes(), "numbers");
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
}

}  // namespace thimble
