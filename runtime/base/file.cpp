// file.cpp: POSIX implementation of file.h.
#include "runtime/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace thimble {
namespace {

// Opens `path` for reading and returns its descriptor and size; directories, devices and pipes are refused.
std::pair<int, uint64_t> open_regular(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for its writer. Regular files ignore it.
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) throw IoError(path, "cannot open for reading", errno);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    int saved = errno;
    ::close(fd);
    throw IoError(path, "cannot stat", saved);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    if (S_ISDIR(info.st_mode)) throw IoError(path, "is a folder, a file is needed", EISDIR);
    throw IoError(path, "not a regular file", EINVAL);
  }
  return {fd, static_cast<uint64_t>(info.st_size)};
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path) {
  auto [fd, size] = open_regular(path);
  size_ = size;
  if (size_ > 0) {
    data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data_ == MAP_FAILED) {
      int saved = errno;
      data_ = nullptr;
      ::close(fd);
      throw IoError(path, "cannot map", saved);
    }
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

std::string read_text_file(const std::string& path, uint64_t limit_bytes) {
  MappedFile file(path);
  if (file.bytes().size() > limit_bytes)
    throw FormatError(
        path, std::to_string(file.bytes().size()) + " B, at most " + std::to_string(limit_bytes) + " B allowed");
  return std::string(as_text(file.bytes()));
}

uint64_t file_size_bytes(const std::string& path) {
  auto [fd, size] = open_regular(path);
  ::close(fd);
  return size;
}

bool file_exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

}  // namespace thimble
