// progress_bar.h: Progress on standard error: a redrawn bar with the time left on a terminal, else a line per stage.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "runtime/progress.h"

namespace thimble {

class ProgressBar final : public Progress {
 public:
  ProgressBar();
  ~ProgressBar() override;
  void begin(std::string_view stage, int64_t total, std::string_view unit) override;
  void advance(int64_t units) override;
  void end() override;

 private:
  using Clock = std::chrono::steady_clock;
  void draw(bool finished);
  double elapsed_seconds() const;

  std::mutex mutex_;
  bool terminal_;
  bool open_ = false;
  std::string stage_, unit_;
  int64_t total_ = 0, done_ = 0;
  Clock::time_point start_, drawn_;
  std::chrono::milliseconds interval_{0};  // until it is drawn again
};

// "2m05s", "14.2s".
std::string duration_text(double seconds);

}  // namespace thimble
