// progress_bar.cpp: drawing for progress_bar.h.
#include "quantizer/progress_bar.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "quantizer/diagnostics.h"

namespace thimble {
namespace {

constexpr int kBarCells = 28;
constexpr std::chrono::milliseconds kTerminalInterval(100);
constexpr std::chrono::seconds kFirstLine(5), kLineInterval(30);

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 99.95) return fmt::format("{:.1f}s", seconds);
  auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

ProgressBar::ProgressBar() : terminal_(::isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (open_ && terminal_) say("\n");
}

void ProgressBar::begin(std::string_view stage, int64_t total, std::string_view unit) {
  std::lock_guard lock(mutex_);
  stage_ = stage;
  unit_ = unit;
  total_ = total;
  done_ = 0;
  open_ = true;
  start_ = drawn_ = Clock::now();
  interval_ = terminal_ ? std::chrono::milliseconds(kTerminalInterval) : std::chrono::milliseconds(kFirstLine);
  if (terminal_) draw(false);
}

void ProgressBar::advance(int64_t units) {
  std::lock_guard lock(mutex_);
  done_ += units;
  auto now = Clock::now();
  if (now - drawn_ < interval_) return;
  drawn_ = now;
  if (!terminal_) interval_ = kLineInterval;
  draw(false);
}

void ProgressBar::end() {
  std::lock_guard lock(mutex_);
  if (!open_) return;
  draw(true);
  open_ = false;
}

double ProgressBar::elapsed_seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

void ProgressBar::draw(bool finished) {
  double elapsed = elapsed_seconds();
  if (finished) {
    say(fmt::format("{}{:<24} {} {} in {}\n", terminal_ ? "\r\033[K" : "", stage_, done_, unit_,
                    duration_text(elapsed)));
    return;
  }
  double share = total_ > 0 ? std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_)) : 0;
  std::string left = done_ > 0 ? duration_text(elapsed * (1 - share) / std::max(share, 1e-9)) + " left" : "";
  if (terminal_) {
    auto filled = static_cast<size_t>(share * kBarCells);
    say(fmt::format("\r\033[K{:<24} [{}{}] {:3.0f}% {}/{} {} {}", stage_, std::string(filled, '='),
                    std::string(kBarCells - filled, ' '), share * 100, done_, total_, unit_, left));
  } else {
    say(fmt::format("{:<24} {:3.0f}% {}/{} {} {}\n", stage_, share * 100, done_, total_, unit_, left));
  }
}

}  // namespace thimble
