// hash.cpp: the xxHash library behind hash.h.
#include "runtime/base/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace thimble {

uint64_t xxh3(Bytes bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }

struct Hasher::State {
  XXH3_state_t xxh;
};

Hasher::Hasher() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
Hasher::~Hasher() = default;

Hasher& Hasher::add(Bytes bytes) {
  XXH3_64bits_update(&state_->xxh, bytes.data(), bytes.size());
  return *this;
}

Hasher& Hasher::add(std::string_view text) { return add(uint64_t{text.size()}).add(as_bytes_of(text)); }

Hasher& Hasher::add(uint64_t value) {
  ByteVector encoded;
  append_little_endian(encoded, value);
  return add(Bytes(encoded));
}

uint64_t Hasher::digest() const { return XXH3_64bits_digest(&state_->xxh); }

std::string hex64(uint64_t value) {
  std::string text(16, '0');
  for (size_t i = text.size(); i-- > 0; value >>= 4) text[i] = "0123456789abcdef"[value & 0xf];
  return text;
}

}  // namespace thimble
