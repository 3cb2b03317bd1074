// atomic_file.h: output that appears whole or not at all: a file, or a folder of them.
// A temporary file in the folder of the output, every write checked, fsync, rename, fsync of the folder. Until commit()
// the old file is untouched; the destructor removes the temporary of an uncommitted write.
//
// Where the system has files without a name (O_TMPFILE), the temporary is one: it goes with its process, however that
// ends. Elsewhere, and in the moment before the rename, it is called <output>.tmp<process>.<number> and locked (flock)
// until it is renamed: one that nobody holds is what a killed process left, and the next AtomicFile for the same output
// removes it.
#pragma once

#include <string>

#include "runtime/base/byte_cursor.h"
#include "runtime/base/error.h"
#include "runtime/base/file.h"

namespace thimble {

// An output for which there is no room: the disk or a quota is full, or a limit on the size of files is reached.
struct NoRoomError : IoError {
  NoRoomError(const std::string& path, const std::string& what, int errno_value);
  bool is_disk_full;  // or the quota: room can be made by removing something
};

// The file that writing `path` replaces: the end of its symbolic links, which need not exist, or `path` itself. An
// Error (exit 5) for links that lead in a circle, and for what is there and no regular file: a folder, a device, a
// FIFO, a socket.
std::string output_target(const std::string& path);

class AtomicFile {
 public:
  enum class Temporary { kUnnamedWherePossible, kNamed };

  // Creates the temporary beside output_target(path). Throws IoError (exit 5) when the folder cannot be written.
  explicit AtomicFile(const std::string& path, Temporary temporary = Temporary::kUnnamedWherePossible);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(Bytes bytes);
  // What was written so far, there for as long as the map lives: of a file that is never committed too, which then
  // takes its room on the disk as long.
  MappedFile map() const { return {path_, fd_}; }
  // Makes the file durable under its name. Throws IoError and leaves the old file when anything fails.
  void commit();

 private:
  friend void require_writable(const std::string& path);
  bool open_unnamed();
  void open_named();
  void give_name();
  void discard() noexcept;

  std::string path_;            // as given, for errors
  std::string target_;          // what commit() replaces
  std::string temporary_path_;  // empty while it has no name
  int fd_ = -1;
};

// The same for a folder of files: they are written into <output>.tmp<process>.<number>, which is locked like the
// temporary of a file until it is renamed. Nothing is replaced: the output must not exist, or be an empty folder.
class AtomicFolder {
 public:
  // An Error (exit 5) when something is there, or the temporary cannot be made beside it.
  explicit AtomicFolder(const std::string& path);
  ~AtomicFolder();
  AtomicFolder(const AtomicFolder&) = delete;
  AtomicFolder& operator=(const AtomicFolder&) = delete;

  // Where the file of this name is to be written before commit().
  std::string file(const std::string& name) const { return temporary_path_ + "/" + name; }
  // Makes the folder durable under its name. Its files must be so already, as those of AtomicFile are.
  void commit();

 private:
  std::string path_;            // as given, for errors
  std::string target_;          // without a slash at its end
  std::string temporary_path_;  // empty after commit()
  int fd_ = -1;                 // holds the lock
};

void write_file_atomically(const std::string& path, Bytes bytes);
void write_file_atomically(const std::string& path, std::string_view text);

// Throws the error that writing `path` would end with, as far as can be known before: of output_target(), or that its
// folder is missing or cannot be written. For programs that compute for hours before they write.
void require_writable(const std::string& path);
// The same for an AtomicFolder.
void require_writable_folder(const std::string& path);

// Creates a folder (not its parents) when it is missing. NoRoomError, or another IoError.
void make_folder(const std::string& path);

}  // namespace thimble
