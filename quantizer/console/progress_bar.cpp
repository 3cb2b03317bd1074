// progress_bar.cpp: stages, estimates and drawing for progress_bar.h.
#include "quantizer/console/progress_bar.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "quantizer/console/console.h"
#include "quantizer/console/diagnostics.h"

namespace thimble {
namespace {

constexpr int kBarCells = 20;
constexpr double kRedrawSeconds = 0.1;
// Below this share of a stage its own pace says nothing about how long it will take.
constexpr double kTellingShare = 0.02;
constexpr size_t kCountedSteps = 2;
constexpr const char* kClearLine = "\r\033[K";

// "1 sequence", "32 sequences", "2,874,752 B": units are named in the plural.
std::string units_text(int64_t count, std::string unit) {
  if (count == 1 && unit == "matrices") unit = "matrix";
  if (count == 1 && unit.ends_with('s')) unit.pop_back();
  return count_text(count) + " " + unit;
}

}  // namespace

std::string duration_text(double seconds) {
  if (seconds < 99.95) return fmt::format("{:.1f}s", seconds);
  auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole < 3600) return fmt::format("{}m{:02}s", whole / 60, whole % 60);
  return fmt::format("{}h{:02}m", whole / 3600, whole % 3600 / 60);
}

ProgressBar::Output ProgressBar::standard_error() {
  auto seconds = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  return {::isatty(STDERR_FILENO) == 1, [](std::string_view text) { say(text); }, seconds};
}

ProgressBar::Output ProgressBar::nowhere() {
  return {false, [](std::string_view) {}, [] { return 0.0; }};
}

ProgressBar::ProgressBar(Output output) : output_(std::move(output)) {}

ProgressBar::~ProgressBar() { finish(); }

void ProgressBar::plan(std::vector<PlannedStage> stages, bool costs_are_seconds) {
  std::lock_guard lock(mutex_);
  costs_are_seconds_ = costs_are_seconds;
  for (PlannedStage& stage : stages) stages_.push_back({std::move(stage), 0, 0, {}});
}

void ProgressBar::begin(std::string_view step, int64_t total, std::string_view unit) {
  std::lock_guard lock(mutex_);
  const size_t stage = stage_of(step);
  if (stage != current_) {
    close();
    open(stage);
  }
  ++count_of(stages_[stage], step, unit).begun;
  step_ = step;
  total_ = total;
  done_ = 0;
  step_open_ = true;
  draw(true);
}

void ProgressBar::advance(int64_t units) {
  std::lock_guard lock(mutex_);
  if (!step_open_) return;
  done_ += units;
  draw(false);
}

void ProgressBar::end() {
  std::lock_guard lock(mutex_);
  if (!step_open_) return;
  Stage& stage = stages_[current_];
  count_of(stage, step_, "").units += done_;
  ++stage.finished_steps;
  step_open_ = false;
  draw(false);
}

void ProgressBar::note(std::string_view line) {
  std::lock_guard lock(mutex_);
  const bool has_bar = output_.is_terminal && current_ != kNone;
  output_.write(fmt::format("{}{}\n", has_bar ? kClearLine : "", line));
  draw(true);
}

void ProgressBar::finish() {
  std::lock_guard lock(mutex_);
  close();
}

size_t ProgressBar::stage_of(std::string_view step) {
  auto has_step = [&](const Stage& stage) {
    return std::ranges::find(stage.planned.steps, step) != stage.planned.steps.end();
  };
  if (current_ != kNone && has_step(stages_[current_])) return current_;
  const size_t next = current_ == kNone ? 0 : current_ + 1;
  for (size_t i = 0; i < stages_.size(); ++i) {
    const size_t stage = (next + i) % stages_.size();
    if (has_step(stages_[stage])) return stage;
  }
  // In front of those to come, which are still to be counted on.
  double cost = stages_.empty() ? 1 : stages_[0].planned.cost;
  for (const Stage& stage : stages_) cost = std::min(cost, stage.planned.cost);
  stages_.insert(stages_.begin() + static_cast<int64_t>(next),
                 Stage{{std::string(step), cost, {std::string(step)}, 1}, 0, 0, {}});
  return next;
}

void ProgressBar::open(size_t stage) {
  current_ = stage;
  opened_ = output_.seconds();
}

// An interrupted stage leaves its bar, so that what comes next begins a line.
void ProgressBar::close() {
  if (current_ == kNone) return;
  Stage& stage = stages_[current_];
  stage.seconds = stage_seconds();
  if (step_open_) {
    if (output_.is_terminal) output_.write("\n");
  } else {
    const std::string line = stage.seconds >= kShownSeconds ? finished_line(stage) + "\n" : "";
    if (output_.is_terminal || !line.empty()) output_.write((output_.is_terminal ? kClearLine : "") + line);
  }
  step_open_ = false;
  current_ = kNone;
}

ProgressBar::StepCount& ProgressBar::count_of(Stage& stage, std::string_view step, std::string_view unit) {
  auto found = std::ranges::find(stage.steps, step, &StepCount::name);
  if (found != stage.steps.end()) return *found;
  return stage.steps.emplace_back(StepCount{std::string(step), std::string(unit), 0, 0});
}

double ProgressBar::stage_seconds() const { return stages_[current_].seconds + output_.seconds() - opened_; }

double ProgressBar::stage_share() const {
  const Stage& stage = stages_[current_];
  double finished = static_cast<double>(stage.finished_steps);
  const double expected = static_cast<double>(std::max(stage.planned.step_count, stage.finished_steps + step_open_));
  if (step_open_ && total_ > 0) finished += std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  return expected > 0 ? finished / expected : 0;
}

// Stages to come are taken to cost what those so far did, by the plan's measure; the one that runs goes on at its pace.
double ProgressBar::seconds_left() const {
  const double share = stage_share(), running = stage_seconds();
  double cost = 0, seconds = 0, cost_to_come = 0;
  for (size_t i = 0; i < stages_.size(); ++i) {
    if (i == current_) continue;
    if (i > current_) cost_to_come += stages_[i].planned.cost;
    if (i > current_ || stages_[i].seconds == 0) continue;
    cost += stages_[i].planned.cost;
    seconds += stages_[i].seconds;
  }
  const double own_cost = stages_[current_].planned.cost;
  double own_seconds = -1;
  if (share >= kTellingShare)
    own_seconds = running / share;
  else if (cost > 0)
    own_seconds = std::max(running, own_cost * seconds / cost);
  else if (costs_are_seconds_)
    own_seconds = std::max(running, own_cost);
  if (own_seconds < 0) return -1;
  return own_seconds - running + cost_to_come * (seconds + own_seconds) / (cost + own_cost);
}

std::string ProgressBar::finished_line(const Stage& stage) const {
  std::vector<std::string> counts;
  if (stage.steps.size() == 1) counts.push_back(units_text(stage.steps[0].units, stage.steps[0].unit));
  // Of several kinds, those that the plan names first tell enough.
  for (const std::string& name : stage.planned.steps) {
    const auto step = std::ranges::find(stage.steps, name, &StepCount::name);
    if (stage.steps.size() == 1 || step == stage.steps.end() || counts.size() == kCountedSteps) continue;
    counts.push_back(step->begun == 1 ? name : fmt::format("{} {} times", name, count_text(step->begun)));
  }
  return fmt::format("{:<24} {} in {}", stage.planned.name, fmt::join(counts, ", "), duration_text(stage.seconds));
}

void ProgressBar::draw(bool is_due) {
  if (!output_.is_terminal || current_ == kNone) return;
  const double now = output_.seconds();
  if (!is_due && now - drawn_ < kRedrawSeconds) return;
  drawn_ = now;
  const double share = stage_share(), left = seconds_left();
  const auto filled = static_cast<size_t>(share * kBarCells);
  std::string line = fmt::format("{}{:<22} [{}{}] {:3.0f}%", kClearLine, stages_[current_].planned.name,
                                 std::string(filled, '='), std::string(kBarCells - filled, ' '), 100 * share);
  if (left >= 0) {
    double before = stage_seconds();
    for (const Stage& stage : stages_)
      if (&stage != &stages_[current_]) before += stage.seconds;
    line +=
        fmt::format("  whole run {:3.0f}%, {} left", 100 * before / std::max(before + left, 1e-9), duration_text(left));
  }
  output_.write(line);
}

}  // namespace thimble
