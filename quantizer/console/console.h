// console.h: what every command says and how: text or JSON on standard output, progress on standard error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/console/progress_bar.h"
#include "quantizer/console/stage_times.h"
#include "runtime/base/count_text.h"
#include "runtime/base/json.h"
#include "runtime/base/progress.h"

namespace thimble {

// Options that all commands share.
struct CommonOptions {
  bool json = false;   // one JSON document on standard output
  bool quiet = false;  // no progress, no tables; errors still appear
  int threads = 0;     // 0: all
  uint64_t seed = 0;
  std::string device = "auto";    // device.h
  std::string numerics = "auto";  // device.h
  uint64_t device_memory = 0;     // bytes of each CUDA device that may be used; 0: what is free
  uint64_t memory = 0;            // bytes of the host that may be planned with; 0: what there is
};

// "16,000,000 B": decimal bytes.
std::string bytes_text(uint64_t bytes);

// Bits for each of `count` parameters; 0 of none.
double bits_each(uint64_t bytes, int64_t count);

// Display columns of UTF-8 text without combining or wide characters: its code points.
size_t display_width(const std::string& text);

// "99.98 %" of a share of a budget, rounded down: what is not all of it is not shown as all of it.
std::string fill_text(double fill);

// Rows of cells as an aligned table; the first row is the heading. Cells that start with a digit, sign or dot align
// right.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

// "name   value" lines, values aligned left.
std::string facts_text(const std::vector<std::pair<std::string, std::string>>& facts);

// What a command has to say about its result, if anything: "note: ..." lines, and a list of texts.
std::string notes_text(const std::vector<std::optional<std::string>>& notes);
Json notes_json(const std::vector<std::optional<std::string>>& notes);

class Console {
 public:
  explicit Console(const CommonOptions& options);

  // The command's result: `json` with --json, else `text` (hidden by --quiet).
  void result(const std::string& text, const Json& json);
  // A line about what is going to happen, where progress is shown.
  void note(const std::string& line) { bar_.note(line); }
  // What an interrupted run says that keeps its work in that folder: a line, or a JSON document with --json. Empty
  // where no work is kept.
  std::string resume_line(const std::string& work_folder) const;
  // The stages to come, for the bar.
  void plan(std::vector<PlannedStage> stages, bool costs_are_seconds = false) {
    bar_.plan(std::move(stages), costs_are_seconds);
  }
  // A bar with the estimated time left on a terminal, a line per stage otherwise; nothing with --quiet, or with --json
  // when standard error is no terminal.
  Progress& progress() { return bar_; }

 private:
  bool json_, quiet_;
  ProgressBar bar_;
};

// Since the program was loaded: about since its process began.
double seconds_since_start();

}  // namespace thimble
