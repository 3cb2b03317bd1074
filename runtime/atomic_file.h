// atomic_file.h: output that appears whole or not at all.
// A temporary file in the same folder (O_EXCL), every write checked, fsync, rename, fsync of the folder.
// Until commit() the old file is untouched; the destructor removes the temporary of an uncommitted write.
#pragma once

#include <string>

#include "runtime/byte_cursor.h"

namespace thimble {

class AtomicFile {
 public:
  // Creates the temporary next to `path`. Throws IoError (exit 5) when the folder cannot be written.
  explicit AtomicFile(const std::string& path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(Bytes bytes);
  // Makes the file durable under its name. Throws IoError and leaves the old file when anything fails.
  void commit();

 private:
  void discard() noexcept;

  std::string path_;
  std::string temporary_path_;
  int fd_ = -1;
};

void write_file_atomically(const std::string& path, Bytes bytes);
void write_file_atomically(const std::string& path, std::string_view text);

// Throws the IoError that writing `path` would end with, as far as can be known before: a folder of that name, or one
// that it lies in is missing or cannot be written. For programs that compute for hours before they write.
void require_writable(const std::string& path);

// Creates a folder (not its parents) when it is missing.
void make_folder(const std::string& path);

}  // namespace thimble
