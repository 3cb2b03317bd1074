// library_bytes.h: bytes as the compression libraries take them.
#pragma once

#include <cstdint>
#include <span>

#include "runtime/base/byte_cursor.h"

namespace thimble {

inline const uint8_t* source(Bytes bytes) { return reinterpret_cast<const uint8_t*>(bytes.data()); }
inline uint8_t* target(std::span<std::byte> bytes) { return reinterpret_cast<uint8_t*>(bytes.data()); }

}  // namespace thimble
