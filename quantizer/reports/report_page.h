// report_page.h: what the pages of `quantize --report` and `sweep --report` share: frame and style, figures at the top,
// tables, and how the run went: settings, time and memory. One file without scripts that loads nothing.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "eval/score/bpb.h"
#include "packer/artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/pipeline/quantize_request.h"
#include "quantizer/reports/html_writer.h"
#include "runtime/base/error.h"

namespace thimble {

// "99.9 %", "0.12 %"; "1.592030"; "+0.011197", "+0.011197 ± 0.000800".
std::string percent_text(double share);
std::string bpb_text(double bits_per_byte);
std::string gap_text(const BpbGap& gap);

// One figure of the headline.
struct KeyFigure {
  std::string name, value, detail;
  std::optional<double> share = {};  // 0 to 1, drawn as a bar
};

struct ReportSettings {
  std::string title;
  std::vector<std::pair<std::string, std::string>> values;
};

// How a run went, for the end of the page.
struct ReportRun {
  std::vector<ReportSettings> settings;
  std::vector<StageTimes::Stage> stages;
  uint64_t peak_bytes = 0;
  bool has_stage_peaks = true;  // else they are those from the beginning to the end of each stage
  std::string written;          // "thimble 0.1.0, 2026-03-01 12:00 UTC"
};

// Opens the document, its <body>, <main> and <header>, with the file's name as the heading; close() ends the header.
void begin_page(HtmlWriter& html, const std::string& command, const std::string& path, const std::string& detail);
void add_key_figures(HtmlWriter& html, const std::vector<KeyFigure>& figures);
void add_notes(HtmlWriter& html, const std::vector<std::string>& notes);

// A <section> with its heading and a sentence on how to read it; close() ends it.
void begin_section(HtmlWriter& html, const std::string& title, const std::string& explanation);

// A table that scrolls by itself where it is wider than the page.
struct ReportTable {
  std::string caption;
  std::vector<std::string> heading;
  size_t text_columns;  // before those of numbers
  struct Cell {
    std::string text;
    std::optional<double> share = {};  // 0 to 1, a bar below the text
  };
  std::vector<std::vector<Cell>> rows;  // the first cell of each is its heading
};
void add_table(HtmlWriter& html, const ReportTable& table);

// The sections about the run; ends what begin_page() began.
std::string end_page(HtmlWriter& html, const ReportRun& run);

// What the artifact says it was made with: "calibration, length": "1024".
ReportSettings provenance_settings(const std::string& title, const ArtifactSummary& artifact);

// What options come to where none was given.
ReportSettings resolved_settings(const std::string& title, const QuantizeRequest& request);

// Stages, memory and when the page was written. Settings: the options given, then the run's `own`, then the defaults of
// the other options where they are fixed.
ReportRun report_run(StageTimes& times, const std::string& device, const CLI::App& command,
                     const std::vector<ReportSettings>& own);

// Ends a command: writes the page to `report`, if one was asked for, which then joins `files`, and prints the result. A
// page that cannot be written is thrown for afterwards: the result is worth showing all the same.
void conclude(const std::string& report, const std::function<std::string()>& page, std::vector<std::string>& files,
              const std::function<void()>& print);

}  // namespace thimble
