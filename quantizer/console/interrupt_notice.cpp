// interrupt_notice.cpp: the signal handler behind interrupt_notice.h. It calls nothing but what POSIX allows one.
#include "quantizer/console/interrupt_notice.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

namespace thimble {
namespace {

constexpr std::array kSignals = {SIGINT, SIGTERM};

// A handler can reach nothing else. Written while no handler is installed.
std::array<char, 8192> g_line;
size_t g_line_bytes = 0;
std::array<struct sigaction, kSignals.size()> g_before;

// The system has restored the default action when it calls this (SA_RESETHAND) and does not hold the signal back
// (SA_NODEFER), so that raising it again ends the program here.
void end_with_notice(int signal) {
  [[maybe_unused]] const ssize_t dropped = ::write(STDERR_FILENO, g_line.data(), g_line_bytes);
  ::raise(signal);
}

}  // namespace

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
