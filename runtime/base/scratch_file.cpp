// scratch_file.cpp: see scratch_file.h.
#include "runtime/base/scratch_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/error.h"

namespace thimble {
namespace {

struct UnnamedFile {
  explicit UnnamedFile(const std::string& folder) : fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
    if (fd >= 0) return;
    // Some file systems have only files with names, which can be taken off again.
    std::string path = folder + "/thimble-XXXXXX";
    fd = ::mkostemp(path.data(), O_CLOEXEC);
    if (fd >= 0) ::unlink(path.c_str());
  }
  ~UnnamedFile() {
    if (fd >= 0) ::close(fd);
  }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  int fd;
};

std::string scratch_folder() {
  const char* named = ::getenv("TMPDIR");
  return named && *named ? named : "/var/tmp";
}

}  // namespace

ScratchBytes make_scratch(uint64_t size_bytes, uint64_t most_in_memory_bytes) {
  if (size_bytes <= most_in_memory_bytes) {
    const auto words = std::make_shared<std::vector<uint64_t>>(size_bytes / sizeof(uint64_t) + 1);
    return {{reinterpret_cast<std::byte*>(words->data()), size_bytes}, words};
  }
  const std::string folder = scratch_folder();
  auto fail = [&](int error) {
    throw IoError(folder,
                  "cannot hold a temporary file of " + std::to_string(size_bytes) + " B (TMPDIR names another folder)",
                  error);
  };
  const UnnamedFile file(folder);
  if (file.fd < 0) fail(errno);
  // A write through a mapping has no way to say that the disk is full.
  if (const int error = ::posix_fallocate(file.fd, 0, static_cast<off_t>(size_bytes)); error != 0) fail(error);
  void* mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
  if (mapped == MAP_FAILED) fail(errno);
  std::shared_ptr<const void> owner(mapped, [size_bytes](void* start) { ::munmap(start, size_bytes); });
  return {{static_cast<std::byte*>(mapped), size_bytes}, std::move(owner)};
}

}  // namespace thimble
