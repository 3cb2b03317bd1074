// artifact_bytes.h: where the bytes of an artifact come from: memory, or whatever reads them for us.
#pragma once

#include "packer/embed/thimble_decode.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/base/fill_text.h"

namespace thimble {

// The caller's reader said that it failed.
struct ReadError : Error {
  explicit ReadError(const std::string& what) : Error(ExitCode::kIo, what) {}
};

class ArtifactBytes {
 public:
  // `file` must outlive the result, and so must what the reader's context stands for.
  explicit ArtifactBytes(Bytes file) : file_(file), size_(file.size()) {}
  ArtifactBytes(const thimble_reader& reader, uint64_t file_bytes) : reader_(reader), size_(file_bytes) {}

  uint64_t size() const { return size_; }
  bool in_memory() const { return reader_.read == nullptr; }

  // Bytes of the file, which has them. Where they do not lie in memory, `room` holds them.
  Bytes read(uint64_t offset, size_t count, ByteVector& room, const std::string& path) const {
    if (in_memory()) return file_.subspan(static_cast<size_t>(offset), count);
    room.resize(count);
    if (count > 0 && reader_.read(reader_.context, offset, room.data(), count) != 0)
      throw ReadError(fill_text("{}: {} B from byte {} on could not be read", path, count, offset));
    return room;
  }

 private:
  Bytes file_;
  thimble_reader reader_{nullptr, nullptr};
  uint64_t size_;
};

}  // namespace thimble
