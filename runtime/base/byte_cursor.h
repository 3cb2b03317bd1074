// byte_cursor.h: the one reader of untrusted bytes, and its counterpart that writes little-endian.
// Every read is checked against what remains; running off the end is a FormatError with path, offset and object.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "runtime/base/format_error.h"

namespace thimble {

using Bytes = std::span<const std::byte>;
using ByteVector = std::vector<std::byte>;

inline Bytes as_bytes_of(std::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}
inline std::string_view as_text(Bytes bytes) { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }

// The integer of type T whose little-endian bytes begin at `at`.
template <typename T>
T load_little_endian(const std::byte* at) {
  static_assert(std::is_integral_v<T>);
  using Bits = std::make_unsigned_t<T>;
  Bits value = 0;
  for (size_t i = 0; i < sizeof(T); ++i)
    value = static_cast<Bits>(value | (static_cast<Bits>(std::to_integer<uint8_t>(at[i])) << (8 * i)));
  return static_cast<T>(value);
}

// The inverse.
template <typename T>
void store_little_endian(std::byte* at, T value) {
  static_assert(std::is_integral_v<T>);
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<std::byte>((bits >> (8 * i)) & 0xff);
}

class ByteCursor {
 public:
  // `path` names the file in errors; `base_offset` is where `bytes` starts in it.
  ByteCursor(Bytes bytes, std::string path, uint64_t base_offset = 0)
      : bytes_(bytes), path_(std::move(path)), base_offset_(base_offset) {}

  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }
  bool at_end() const { return remaining() == 0; }
  const std::string& path() const { return path_; }

  // Little-endian integer of type T. `object` says what is being read, for the error.
  template <typename T>
  T read(std::string_view object) {
    return load_little_endian<T>(take(sizeof(T), object).data());
  }

  // The next `count` bytes, as a view into the file.
  Bytes take(uint64_t count, std::string_view object) {
    if (count > remaining())
      throw_format_error(path_, "truncated at byte {}: {} needs {} B, {} B remain", base_offset_ + position_, object,
                         count, remaining());
    Bytes taken = bytes_.subspan(position_, count);
    position_ += count;
    return taken;
  }

  std::string_view take_text(uint64_t count, std::string_view object) { return as_text(take(count, object)); }

  void seek(uint64_t position, std::string_view object) {
    if (position > bytes_.size())
      throw_format_error(path_, "{} at byte {}, the file has {} B", object, position, bytes_.size());
    position_ = position;
  }

 private:
  Bytes bytes_;
  std::string path_;
  uint64_t base_offset_;
  uint64_t position_ = 0;
};

template <typename T>
void append_little_endian(ByteVector& out, T value) {
  static_assert(std::is_integral_v<T>);
  auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) out.push_back(static_cast<std::byte>((bits >> (8 * i)) & 0xff));
}

inline void append_bytes(ByteVector& out, Bytes bytes) { out.insert(out.end(), bytes.begin(), bytes.end()); }

}  // namespace thimble
