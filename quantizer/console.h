// console.h: what every command says and how: text or JSON on standard output, progress on standard error.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/json.h"
#include "runtime/progress.h"

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
};

// "16,000,000 B": decimal bytes.
std::string bytes_text(uint64_t bytes);
std::string count_text(int64_t count);  // "29,951,068"

// Rows of cells as an aligned table; the first row is the heading. Cells that start with a digit, sign or dot align
// right.
std::string table_text(const std::vector<std::vector<std::string>>& rows);

// "name   value" lines, values aligned left.
std::string facts_text(const std::vector<std::pair<std::string, std::string>>& facts);

class Console {
 public:
  explicit Console(const CommonOptions& options);
  ~Console();

  // The command's result: `json` with --json, else `text` (hidden by --quiet).
  void result(const std::string& text, const Json& json) const;
  // A line about what is going to happen, where progress is shown.
  void note(const std::string& line) const;
  // What an interrupted run says that keeps its work in that folder: a line, or a JSON document with --json. Empty
  // where no work is kept.
  std::string resume_line(const std::string& work_folder) const;
  // A bar with the estimated time left on a terminal, plain lines otherwise; nothing with --quiet, or with --json when
  // standard error is no terminal.
  Progress& progress() { return *progress_; }

 private:
  bool json_, quiet_, has_progress_;
  std::unique_ptr<Progress> progress_;
};

// Seconds of each named stage of a command, in order.
class StageTimes {
 public:
  template <typename Body>
  auto time(const std::string& stage, Body body) {
    struct Stop {
      StageTimes& times;
      std::string stage;
      std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
      ~Stop() { times.add(stage, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count()); }
    } stop{*this, stage};
    return body();
  }
  const std::vector<std::pair<std::string, double>>& stages() const { return stages_; }
  Json to_json() const;

 private:
  void add(const std::string& stage, double seconds);  // repeated stages add up
  std::vector<std::pair<std::string, double>> stages_;
};

// Since the program was loaded: about since its process began.
double seconds_since_start();

// Highest resident memory of this process so far.
uint64_t peak_memory_bytes();

}  // namespace thimble
