// atomic_file.cpp: POSIX and Linux implementation of atomic_file.h.
#include "runtime/base/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <regex>
#include <utility>
#include <vector>

namespace thimble {
namespace {

constexpr int kMaxNameAttempts = 100;
constexpr int kMaxLinks = 40;  // as many as Linux follows
constexpr mode_t kMode = 0666;
constexpr const char* kTemporaryMark = ".tmp";
constexpr const char* kOwnDescriptors = "/proc/self/fd/";

std::string folder_of(const std::string& path) {
  std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

std::string temporary_name(const std::string& target, int attempt) {
  return target + kTemporaryMark + std::to_string(::getpid()) + "." + std::to_string(attempt);
}

[[noreturn]] void fail(const std::string& path, const std::string& what, int errno_value) {
  if (errno_value == ENOSPC || errno_value == EDQUOT || errno_value == EFBIG)
    throw NoRoomError(path, what, errno_value);
  throw IoError(path, what, errno_value);
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

bool is_same_file(const struct stat& a, const struct stat& b) { return a.st_dev == b.st_dev && a.st_ino == b.st_ino; }

void require_regular(const std::string& path, mode_t mode) {
  if (S_ISREG(mode)) return;
  if (S_ISDIR(mode)) throw IoError(path, "cannot write", EISDIR);
  const char* kind = S_ISFIFO(mode) ? "a FIFO" : S_ISSOCK(mode) ? "a socket" : "a device";
  throw Error(ExitCode::kIo, path + ": is " + kind + "; an output must be a regular file, or none yet");
}

// Takes the lock that says that the process of a temporary lives. False when another holds it. File systems that know
// no locks have none that anybody could take.
bool lock(int fd) { return ::flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

// Did the descriptor's file keep its name? It loses it to a process that took it for abandoned before it was locked.
bool has_name(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && info.st_nlink > 0;
}

// "<prefix>12.0"
bool is_temporary_name(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) && std::regex_match(name.substr(prefix.size()), std::regex("[0-9]+\\.[0-9]+"));
}

// Removes a temporary of this user that no process holds; leaves alone whatever else has such a name.
void remove_if_abandoned(const std::string& path) {
  // Neither links nor waiting for the reader of a FIFO. Over NFS, an exclusive lock needs a descriptor for writing.
  const int fd = ::open(path.c_str(), O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  struct stat opened {
  }, named{};
  if (::fstat(fd, &opened) == 0 && S_ISREG(opened.st_mode) && opened.st_uid == ::geteuid() &&
      ::flock(fd, LOCK_EX | LOCK_NB) == 0 && ::lstat(path.c_str(), &named) == 0 && is_same_file(opened, named))
    ::unlink(path.c_str());
  ::close(fd);
}

// The same for a folder.
void remove_folder_if_abandoned(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return;
  struct stat opened {};
  std::error_code unremoved;  // then it stays
  if (::fstat(fd, &opened) == 0 && opened.st_uid == ::geteuid() && ::flock(fd, LOCK_EX | LOCK_NB) == 0)
    std::filesystem::remove_all(path, unremoved);
  ::close(fd);
}

void remove_abandoned_temporaries(const std::string& target, void (*remove)(const std::string& path)) {
  const std::string prefix = std::filesystem::path(target).filename().string() + kTemporaryMark;
  std::vector<std::string> found;
  std::error_code unreadable;  // then whatever lies there stays
  for (std::filesystem::directory_iterator entry(folder_of(target), unreadable), end; !unreadable && entry != end;
       entry.increment(unreadable))
    if (is_temporary_name(entry->path().filename().string(), prefix)) found.push_back(entry->path().string());
  std::ranges::for_each(found, remove);
}

// Throws unless nothing is there, or an empty folder.
void require_no_folder(const std::string& target, const std::string& path) {
  struct stat info {};
  if (::lstat(target.c_str(), &info) != 0) {
    if (errno != ENOENT) throw IoError(path, "cannot write", errno);
    return;
  }
  std::error_code unreadable;
  if (S_ISDIR(info.st_mode) && std::filesystem::is_empty(target, unreadable) && !unreadable) return;
  throw Error(ExitCode::kIo, path + ": is there already; a folder that is written must be new, or empty");
}

}  // namespace

NoRoomError::NoRoomError(const std::string& path, const std::string& what, int errno_value)
    : IoError(path, what, errno_value), is_disk_full(errno_value != EFBIG) {}

std::string output_target(const std::string& path) {
  struct stat found {};
  const bool exists = ::stat(path.c_str(), &found) == 0;
  if (exists)
    require_regular(path, found.st_mode);
  else if (errno != ENOENT || path.empty())  // also a link that the system does not let this user follow
    throw IoError(path, "cannot write", errno);
  std::filesystem::path target = path;
  struct stat info {};
  int links = 0;
  for (; ::lstat(target.c_str(), &info) == 0 && S_ISLNK(info.st_mode); ++links) {
    std::error_code unreadable;
    const std::filesystem::path next = std::filesystem::read_symlink(target, unreadable);
    if (unreadable || links == kMaxLinks) throw IoError(path, "cannot follow the link", ELOOP);
    target = target.parent_path() / next;  // which is `next` alone when that is absolute
  }
  // A link of /proc may name a file that has no such name any more.
  if (exists && links > 0 && (::lstat(target.c_str(), &info) != 0 || !is_same_file(info, found)))
    throw IoError(path, "cannot find the file that the link stands for, " + target.string(), ENOENT);
  return target.string();
}

AtomicFile::AtomicFile(const std::string& path, Temporary temporary) : path_(path), target_(output_target(path)) {
  remove_abandoned_temporaries(target_, remove_if_abandoned);
  if (temporary == Temporary::kNamed || !open_unnamed()) open_named();
}

AtomicFile::~AtomicFile() { discard(); }

bool AtomicFile::open_unnamed() {
  if (::access(kOwnDescriptors, X_OK) != 0) return false;  // give_name() needs them
  fd_ = ::open(folder_of(target_).c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, kMode);
  if (fd_ < 0) return false;
  lock(fd_);
  return true;
}

void AtomicFile::open_named() {
  for (int attempt = 0; attempt < kMaxNameAttempts; ++attempt) {
    temporary_path_ = temporary_name(target_, attempt);
    fd_ = ::open(temporary_path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, kMode);
    if (fd_ >= 0 && lock(fd_) && has_name(fd_)) return;
    const int saved = fd_ >= 0 ? EEXIST : errno;
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    temporary_path_.clear();
    if (saved != EEXIST) fail(path_, "cannot create a temporary file beside it", saved);
  }
  throw IoError(path_, "cannot find a free temporary name", EEXIST);
}

// What is written anew must be linked under a free name first: a link replaces nothing, a rename does.
void AtomicFile::give_name() {
  if (!temporary_path_.empty()) return;
  const std::string unnamed = kOwnDescriptors + std::to_string(fd_);
  for (int attempt = 0; attempt < kMaxNameAttempts; ++attempt) {
    const std::string name = temporary_name(target_, attempt);
    if (::linkat(AT_FDCWD, unnamed.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0) {
      temporary_path_ = name;
      return;
    }
    if (errno != EEXIST) fail(path_, "cannot name the temporary file beside it", errno);
  }
  throw IoError(path_, "cannot find a free temporary name", EEXIST);
}

void AtomicFile::discard() noexcept {
  if (!temporary_path_.empty()) ::unlink(temporary_path_.c_str());
  temporary_path_.clear();
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
}

void AtomicFile::write(Bytes bytes) {
  while (!bytes.empty()) {
    ssize_t written = ::write(fd_, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      fail(path_, "write failed", errno);
    }
    bytes = bytes.subspan(static_cast<size_t>(written));
  }
}

void AtomicFile::commit() {
  if (::fsync(fd_) != 0) fail(path_, "cannot sync", errno);
  give_name();
  if (::rename(temporary_path_.c_str(), target_.c_str()) != 0) fail(path_, "cannot rename into place", errno);
  temporary_path_.clear();
  // Not before, since it ends the lock. What a close could still report of the writes, fsync has.
  ::close(std::exchange(fd_, -1));
  sync_folder(folder_of(target_));
}

AtomicFolder::AtomicFolder(const std::string& path) : path_(path), target_(path) {
  while (target_.size() > 1 && target_.ends_with('/')) target_.pop_back();
  require_no_folder(target_, path);
  remove_abandoned_temporaries(target_, remove_folder_if_abandoned);
  for (int attempt = 0; attempt < kMaxNameAttempts && fd_ < 0; ++attempt) {
    temporary_path_ = temporary_name(target_, attempt);
    if (::mkdir(temporary_path_.c_str(), 0777) == 0)
      fd_ = ::open(temporary_path_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    else if (errno != EEXIST)
      fail(path_, "cannot create a temporary folder beside it", errno);
  }
  if (fd_ < 0) throw IoError(path_, "cannot find a free temporary name", EEXIST);
  lock(fd_);
}

AtomicFolder::~AtomicFolder() {
  std::error_code unremoved;  // then the next one removes it
  if (!temporary_path_.empty()) std::filesystem::remove_all(temporary_path_, unremoved);
  if (fd_ >= 0) ::close(fd_);
}

void AtomicFolder::commit() {
  sync_folder(temporary_path_);
  // Replaces an empty folder and nothing else.
  if (::rename(temporary_path_.c_str(), target_.c_str()) != 0) fail(path_, "cannot rename into place", errno);
  temporary_path_.clear();
  sync_folder(folder_of(target_));
}

void write_file_atomically(const std::string& path, Bytes bytes) {
  AtomicFile file(path);
  file.write(bytes);
  file.commit();
}

void write_file_atomically(const std::string& path, std::string_view text) {
  write_file_atomically(path, as_bytes_of(text));
}

void require_writable(const std::string& path) { AtomicFile(path).give_name(); }

void require_writable_folder(const std::string& path) { AtomicFolder{path}; }

void make_folder(const std::string& path) {
  std::error_code failure;  // none for a folder that is there already
  std::filesystem::create_directory(path, failure);
  if (failure) fail(path, "cannot create folder", failure.value());
}

}  // namespace thimble
