// bounded_output.h: where a decompressor writes when the size it should produce comes from an untrusted file.
// Grows with what is written, never by the declared size up front, and throws once the output exceeds it.
#pragma once

#include <algorithm>
#include <span>
#include <string>

#include "runtime/base/byte_cursor.h"

namespace thimble {

class BoundedOutput {
 public:
  // `where` names file and section in errors.
  BoundedOutput(uint64_t declared_bytes, const std::string& where) : declared_bytes_(declared_bytes), where_(where) {}

  // Room to write to, never empty: one byte past the declared size is offered so that an excess shows.
  std::span<std::byte> room() {
    if (written_ == bytes_.size())
      bytes_.resize(std::min<uint64_t>(declared_bytes_ + 1, std::max<uint64_t>(2 * written_, kFirstBytes)));
    return std::span(bytes_).subspan(written_);
  }

  void wrote(size_t count) {
    written_ += count;
    if (written_ > declared_bytes_)
      throw FormatError(where_, "decompresses to more than the declared " + std::to_string(declared_bytes_) + " B");
  }

  ByteVector finish() {
    if (written_ != declared_bytes_)
      throw FormatError(where_, "decompresses to " + std::to_string(written_) + " B, " +
                                    std::to_string(declared_bytes_) + " B declared");
    bytes_.resize(written_);
    return std::move(bytes_);
  }

 private:
  static constexpr uint64_t kFirstBytes = 1 << 16;

  uint64_t declared_bytes_;
  const std::string& where_;
  ByteVector bytes_;
  uint64_t written_ = 0;
};

}  // namespace thimble
