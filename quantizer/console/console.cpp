// console.cpp: formatting and output for console.h.
#include "quantizer/console/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>

#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr auto kReplace = Json::error_handler_t::replace;  // what is not UTF-8, in names of files
const std::chrono::steady_clock::time_point kStart = std::chrono::steady_clock::now();

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0)
    throw IoError("standard output", "write failed", errno);
}

bool aligns_right(const std::string& cell) {
  return !cell.empty() &&
         (std::isdigit(static_cast<unsigned char>(cell[0])) || cell[0] == '+' || cell[0] == '-' || cell[0] == '.');
}

}  // namespace

std::string bytes_text(uint64_t bytes) { return count_text(bytes) + " B"; }

double bits_each(uint64_t bytes, int64_t count) {
  return count == 0 ? 0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(count);
}

size_t display_width(const std::string& text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string fill_text(double fill) { return fmt::format("{:.2f} %", std::floor(fill * 1e4) / 100); }

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

std::string notes_text(const std::vector<std::optional<std::string>>& notes) {
  std::string text;
  for (const auto& note : notes)
    if (note) text += "note: " + *note + "\n";
  return text;
}

Json notes_json(const std::vector<std::optional<std::string>>& notes) {
  Json json = Json::array();
  for (const auto& note : notes)
    if (note) json.push_back(*note);
  return json;
}

// With --json and nobody watching, standard error is kept for the error, one JSON document too.
Console::Console(const CommonOptions& options)
    : json_(options.json),
      quiet_(options.quiet),
      bar_(options.quiet || (options.json && ::isatty(STDERR_FILENO) != 1) ? ProgressBar::nowhere()
                                                                           : ProgressBar::standard_error()) {}

void Console::result(const std::string& text, const Json& json) {
  bar_.finish();
  if (json_) {
    print(json.dump(2, ' ', false, kReplace) + "\n");
  } else if (!quiet_) {
    print(text);
  }
}

std::string Console::resume_line(const std::string& work_folder) const {
  if (work_folder.empty()) return "";
  const std::string message = "interrupted; the same command goes on from the work folder '" + work_folder + "'";
  if (json_) return Json{{"interrupted", {{"message", message}}}}.dump(-1, ' ', false, kReplace) + "\n";
  // A bar that is being drawn stays above.
  return (::isatty(STDERR_FILENO) == 1 ? "\n" : "") + ("thimble: " + message + "\n");
}

double seconds_since_start() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - kStart).count();
}

}  // namespace thimble
