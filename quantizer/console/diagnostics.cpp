// diagnostics.cpp: POSIX implementation of diagnostics.h.
#include "quantizer/console/diagnostics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <ctime>

namespace thimble {
namespace {

// Holds back the SIGPIPE of this thread's writes, so that the caller's own setting goes on deciding what becomes of
// standard output.
class SigpipeHeldBack {
 public:
  SigpipeHeldBack() noexcept {
    sigset_t pending;
    sigemptyset(&sigpipe_);
    sigaddset(&sigpipe_, SIGPIPE);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &sigpipe_, &before_);
  }
  ~SigpipeHeldBack() {
    constexpr timespec kAtOnce{0, 0};
    if (!was_pending_) sigtimedwait(&sigpipe_, nullptr, &kAtOnce);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeHeldBack(const SigpipeHeldBack&) = delete;
  SigpipeHeldBack& operator=(const SigpipeHeldBack&) = delete;

 private:
  sigset_t sigpipe_, before_;
  bool was_pending_;
};

}  // namespace

void say(std::string_view text) noexcept {
  const int saved = errno;
  {
    SigpipeHeldBack held_back;
    while (!text.empty()) {
      const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) break;
      text.remove_prefix(static_cast<size_t>(written));
    }
  }
  errno = saved;
}

bool occupy_standard_streams() noexcept {
  for (int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0) continue;
    // open() takes the lowest free number, which is this one. Only for reading, so that a result written to standard
    // output is an error as it was while that was closed.
    if (::open("/dev/null", O_RDONLY) != stream) return false;
  }
  return true;
}

}  // namespace thimble
