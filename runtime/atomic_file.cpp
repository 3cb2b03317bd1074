// atomic_file.cpp: POSIX implementation of atomic_file.h.
#include "runtime/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <utility>

namespace thimble {
namespace {

constexpr int kMaxNameAttempts = 100;

std::string folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

void sync_folder(const std::string& folder) {
  int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) throw IoError(folder, "cannot open folder to sync it", errno);
  // Some file systems cannot sync a folder and say EINVAL; the rename is then as durable as they allow.
  int result = ::fsync(fd);
  int saved = errno;
  ::close(fd);
  if (result != 0 && saved != EINVAL) throw IoError(folder, "cannot sync folder", saved);
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path) : path_(path) {
  for (int attempt = 0; attempt < kMaxNameAttempts; ++attempt) {
    temporary_path_ = path + ".tmp" + std::to_string(::getpid()) + "." + std::to_string(attempt);
    fd_ = ::open(temporary_path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ >= 0) return;
    if (errno != EEXIST) throw IoError(path, "cannot create a temporary file beside it", errno);
  }
  throw IoError(path, "cannot find a free temporary name", EEXIST);
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
  temporary_path_.clear();
}

void AtomicFile::write(Bytes bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      throw IoError(path_, "write failed", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) throw IoError(path_, "cannot sync", errno);
  int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) throw IoError(path_, "cannot close", errno);
  if (::rename(temporary_path_.c_str(), path_.c_str()) != 0) throw IoError(path_, "cannot rename into place", errno);
  temporary_path_.clear();
  sync_folder(folder_of(path_));
}

void write_file_atomically(const std::string& path, Bytes bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, as_bytes_of(text));
}

void require_writable(const std::string& path) {
  std::error_code missing;
  if (std::filesystem::is_directory(path, missing)) throw IoError(path, "cannot write", EISDIR);
  AtomicFile probe(path);
}

void make_folder(const std::string& path) {
  if (::mkdir(path.c_str(), 0777) == 0) return;
  int saved = errno;
  std::error_code ignored;
  if (saved == EEXIST && std::filesystem::is_directory(path, ignored)) return;
  throw IoError(path, "cannot create folder", saved);
}

}  // namespace thimble
