// file.h: reading whole files, by mapping or by copying. Missing or unreadable files are IoErrors (exit 5).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/byte_cursor.h"

namespace thimble {

// A read-only memory map of a regular file, unmapped with its last copy. An empty file has empty bytes.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);
  // Of an open file, which may then be closed, and lose its name. `path`: for errors.
  MappedFile(const std::string& path, int descriptor);

  const std::string& path() const { return path_; }
  Bytes bytes() const { return bytes_; }

  // What the bytes live as long as.
  std::shared_ptr<const void> owner() const { return mapping_; }

 private:
  std::string path_;
  Bytes bytes_;
  std::shared_ptr<void> mapping_;
};

// Bytes that stay as long as their owner, be they in memory or in a mapped file.
struct HeldBytes {
  Bytes bytes;
  std::shared_ptr<const void> owner;
};
HeldBytes hold(ByteVector bytes);
inline HeldBytes hold(const MappedFile& file) { return {file.bytes(), file.owner()}; }

// The file's contents. A file above `limit_bytes` is a FormatError.
std::string read_text_file(const std::string& path, uint64_t limit_bytes);

// Size in bytes of a regular file.
uint64_t file_size_bytes(const std::string& path);

bool file_exists(const std::string& path);

}  // namespace thimble
