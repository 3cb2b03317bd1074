// hash.h: XXH3-64 (xxHash library) over bytes: checksums of artifact sections and keys of resumable results.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

uint64_t xxh3(Bytes bytes);

// Incremental XXH3-64.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher& add(Bytes bytes);
  // Adds the text and its length, so that ("ab","c") and ("a","bc") differ.
  Hasher& add(std::string_view text);
  Hasher& add(uint64_t value);
  uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

std::string hex64(uint64_t value);  // 16 lower-case digits

}  // namespace thimble
