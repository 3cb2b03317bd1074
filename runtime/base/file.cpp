// file.cpp: POSIX implementation of file.h.
#include "runtime/base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

namespace thimble {

namespace {

struct Descriptor {
  explicit Descriptor(const std::string& path)
      // O_NONBLOCK: opening a pipe must not wait for its writer. Regular files ignore it.
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd < 0) throw IoError(path, "cannot open for reading", errno);
  }
  ~Descriptor() { ::close(fd); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  const int fd;
};

}  // namespace

MappedFile::MappedFile(const std::string& path) : MappedFile(path, Descriptor(path).fd) {}

// Directories, devices and pipes are refused.
MappedFile::MappedFile(const std::string& path, int fd) : path_(path) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) throw IoError(path, "cannot stat", errno);
  if (S_ISDIR(info.st_mode)) throw IoError(path, "is a folder, a file is needed", EISDIR);
  if (!S_ISREG(info.st_mode)) throw IoError(path, "not a regular file", EINVAL);
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) return;
  void* mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (mapped == MAP_FAILED) throw IoError(path, "cannot map", errno);
  mapping_ = {mapped, [size](void* start) { ::munmap(start, size); }};
  bytes_ = {static_cast<const std::byte*>(mapped), size};
}

HeldBytes hold(ByteVector bytes) {
  auto owner = std::make_shared<const ByteVector>(std::move(bytes));
  return {*owner, owner};
}

std::string read_text_file(const std::string& path, uint64_t limit_bytes) {
  MappedFile file(path);
  if (file.bytes().size() > limit_bytes)
    throw FormatError(
        path, std::to_string(file.bytes().size()) + " B, at most " + std::to_string(limit_bytes) + " B allowed");
  return std::string(as_text(file.bytes()));
}

uint64_t file_size_bytes(const std::string& path) { return MappedFile(path).bytes().size(); }

bool file_exists(const std::string& path) {
  std::error_code unreadable;
  return std::filesystem::exists(path, unreadable);
}

}  // namespace thimble
