// console.cpp: formatting and output for console.h.
#include "quantizer/console.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>

#include "quantizer/diagnostics.h"
#include "quantizer/progress_bar.h"
#include "runtime/error.h"

namespace thimble {
namespace {

constexpr auto kReplace = Json::error_handler_t::replace;  // what is not UTF-8, in names of files
const std::chrono::steady_clock::time_point kStart = std::chrono::steady_clock::now();

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw IoError("standard output", "write failed", errno);
}

// Display columns of UTF-8 text without combining or wide characters: its code points.
size_t display_width(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

bool aligns_right(const std::string& cell) {
  return !cell.empty() &&
         (std::isdigit(static_cast<unsigned char>(cell[0])) || cell[0] == '+' || cell[0] == '-' || cell[0] == '.');
}

// Digits in groups of three, after an optional sign.
std::string grouped(std::string digits) {
  size_t first = digits[0] == '-' ? 1 : 0;
  for (size_t i = digits.size(); i > first + 3;) {
    i -= 3;
    digits.insert(i, ",");
  }
  return digits;
}

}  // namespace

std::string count_text(int64_t count) { return grouped(std::to_string(count)); }

std::string bytes_text(uint64_t bytes) { return grouped(std::to_string(bytes)) + " B"; }

std::string table_text(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], display_width(row[c]));
  }
  std::string text;
  for (size_t r = 0; r < rows.size(); ++r) {
    std::string line;
    for (size_t c = 0; c < rows[r].size(); ++c) {
      std::string padding(widths[c] - display_width(rows[r][c]), ' ');
      // A heading aligns as the column below it does.
      bool right = aligns_right(rows[r == 0 && rows.size() > 1 && c < rows[1].size() ? 1 : r][c]);
      if (c > 0) line += "  ";
      line += right ? padding + rows[r][c] : rows[r][c] + padding;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string facts_text(const std::vector<std::pair<std::string, std::string>>& facts) {
  size_t width = 0;
  for (const auto& [name, value] : facts) width = std::max(width, display_width(name));
  std::string text;
  for (const auto& [name, value] : facts)
    text += name + std::string(width - display_width(name) + 2, ' ') + value + "\n";
  return text;
}

// With --json and nobody watching, standard error is kept for the error, one JSON document too.
Console::Console(const CommonOptions& options)
    : json_(options.json),
      quiet_(options.quiet),
      has_progress_(!options.quiet && (!options.json || ::isatty(STDERR_FILENO) == 1)) {
  if (has_progress_)
    progress_ = std::make_unique<ProgressBar>();
  else
    progress_ = std::make_unique<SilentProgress>();
}

Console::~Console() = default;

void Console::result(const std::string& text, const Json& json) const {
  if (json_) {
    print(json.dump(2, ' ', false, kReplace) + "\n");
  } else if (!quiet_) {
    print(text);
  }
}

void Console::note(const std::string& line) const {
  if (has_progress_) say(line + "\n");
}

std::string Console::resume_line(const std::string& work_folder) const {
  if (work_folder.empty()) return "";
  const std::string message = "interrupted; the same command goes on from the work folder '" + work_folder + "'";
  if (json_) return Json{{"interrupted", {{"message", message}}}}.dump(-1, ' ', false, kReplace) + "\n";
  // A bar that is being drawn stays above.
  return (::isatty(STDERR_FILENO) == 1 ? "\n" : "") + ("thimble: " + message + "\n");
}

void StageTimes::add(const std::string& stage, double seconds) {
  for (auto& [name, total] : stages_) {
    if (name == stage) {
      total += seconds;
      return;
    }
  }
  stages_.emplace_back(stage, seconds);
}

Json StageTimes::to_json() const {
  Json json = Json::object();
  for (const auto& [stage, seconds] : stages_) json[stage] = seconds;
  return json;
}

double seconds_since_start() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - kStart).count();
}

uint64_t peak_memory_bytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * 1024;  // Linux counts in KiB
}

}  // namespace thimble
