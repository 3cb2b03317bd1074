// diagnostics.cpp: POSIX implementation of diagnostics.h.
#include "quantizer/console/diagnostics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
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

constexpr std::array kSignals = {SIGINT, SIGTERM};

// A handler can reach nothing else. Written while no handler is installed.
std::array<char, 8192> g_line;
size_t g_line_bytes = 0;
std::array<struct sigaction, kSignals.size()> g_before;

// Calls nothing but what POSIX allows a handler. The system has restored the default action when it calls this
// (SA_RESETHAND) and does not hold the signal back (SA_NODEFER), so that raising it again ends the program here.
void end_with_notice(int signal) {
  [[maybe_unused]] const ssize_t dropped = ::write(STDERR_FILENO, g_line.data(), g_line_bytes);
  ::raise(signal);
}

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

InterruptNotice::InterruptNotice(std::string_view line) : is_set_(!line.empty()) {
  if (!is_set_) return;
  g_line_bytes = std::min(line.size(), g_line.size());
  std::copy_n(line.begin(), g_line_bytes, g_line.begin());
  struct sigaction action {};
  action.sa_handler = end_with_notice;
  action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  sigaddset(&action.sa_mask, SIGPIPE);  // a standard error that nobody reads must not decide how the program ends
  for (size_t i = 0; i < kSignals.size(); ++i) {
    ::sigaction(kSignals[i], nullptr, &g_before[i]);
    if (g_before[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &action, nullptr);
  }
}

InterruptNotice::~InterruptNotice() {
  if (!is_set_) return;
  for (size_t i = 0; i < kSignals.size(); ++i) ::sigaction(kSignals[i], &g_before[i], nullptr);
}

}  // namespace thimble
