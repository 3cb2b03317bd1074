// progress_bar.h: what a run says on standard error about how far it is. A run is a list of stages; each gathers the
// steps that code below reports through Progress, however often they are repeated.
// On a terminal: one line per stage, redrawn with a bar, the share of the whole run and the time left. Elsewhere: one
// line per finished stage. Stages shorter than kShownSeconds leave no line.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/progress.h"

namespace thimble {

// A stage that a command expects.
struct PlannedStage {
  std::string name;                // "calibrating"
  double cost = 1;                 // time that it takes, relative to the other stages of the plan, or seconds; above 0
  std::vector<std::string> steps;  // what begin() calls what belongs to it
  int64_t step_count = 1;          // how many such steps are expected
};

class ProgressBar final : public Progress {
 public:
  static constexpr double kShownSeconds = 0.5;

  struct Output {
    bool is_terminal = false;
    std::function<void(std::string_view)> write;
    std::function<double()> seconds;  // a clock that never goes back
  };

  static Output standard_error();  // and the system's clock
  static Output nowhere();         // of what is not to be shown

  explicit ProgressBar(Output output);
  ~ProgressBar() override;  // closes the last stage

  // The stages to come, in order; once, before the first step. A step of no planned stage is a stage of its own; one of
  // several stages belongs to the one that is running, else to the next. Costs in seconds say how long the run is going
  // to take before any of it is measured.
  void plan(std::vector<PlannedStage> stages, bool costs_are_seconds = false);

  void begin(std::string_view step, int64_t total, std::string_view unit) override;
  void advance(int64_t units) override;
  void end() override;

  // A line of its own, between those of the stages.
  void note(std::string_view line);
  // No stage runs on: what follows is the result.
  void finish();

 private:
  struct StepCount {
    std::string name, unit;
    int64_t begun = 0, units = 0;
  };
  struct Stage {
    PlannedStage planned;
    double seconds = 0;  // while it was closed before
    int64_t finished_steps = 0;
    std::vector<StepCount> steps;
  };

  static constexpr size_t kNone = SIZE_MAX;

  size_t stage_of(std::string_view step);
  void open(size_t stage);
  void close();
  StepCount& count_of(Stage& stage, std::string_view step, std::string_view unit);
  double stage_seconds() const;  // of the open one
  double stage_share() const;    // likewise, 0 to 1
  double seconds_left() const;   // of the whole run; negative when nothing is known yet
  std::string finished_line(const Stage& stage) const;
  void draw(bool is_due);

  std::mutex mutex_;
  Output output_;
  bool costs_are_seconds_ = false;
  std::vector<Stage> stages_;
  size_t current_ = kNone;
  double opened_ = 0, drawn_ = 0;  // on the clock
  bool step_open_ = false;
  std::string step_;
  int64_t total_ = 0, done_ = 0;  // of the step
};

// "2m05s", "14.2s".
std::string duration_text(double seconds);

}  // namespace thimble
