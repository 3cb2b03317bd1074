// report_page.h: what the pages of `quantize --report` and `sweep --report` share: frame and style, figures at the top,
// tensors by bytes and loss, settings, time and memory. One file without scripts that loads nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quantizer/reports/heat_map.h"
#include "quantizer/reports/html_writer.h"

namespace thimble {

// "99.9 %", "0.12 %".
std::string percent_text(double share);

// One figure of the headline.
struct KeyFigure {
  std::string name, value, detail;
  std::optional<double> share;  // 0 to 1, drawn as a bar
};

struct ReportTensor {
  std::string name, shape, precision;
  double bytes = 0, bits_per_weight = 0;
  bool is_coded = false;             // has a place in the map
  std::optional<double> loss_share;  // of the loss that was predicted for all
};

struct ReportSettings {
  std::string title;
  std::vector<std::pair<std::string, std::string>> values;
};

struct ReportStage {
  std::string name;
  double seconds = 0;
  uint64_t peak_bytes = 0;  // resident memory
};

// How a run went, for the end of the page.
struct ReportRun {
  std::vector<ReportSettings> settings;
  std::vector<ReportStage> stages;
  uint64_t peak_bytes = 0;
  bool has_stage_peaks = true;  // else they are those from the beginning to the end of each stage
  std::string written;          // "thimble 0.1.0, 2026-03-01 12:00 UTC"
};

// Opens the document, its <body>, <main> and <header>, with the heading; close() ends the header.
void begin_page(HtmlWriter& html, const std::string& command, const std::string& subject, const std::string& detail);
void add_key_figures(HtmlWriter& html, const std::vector<KeyFigure>& figures);
void add_notes(HtmlWriter& html, const std::vector<std::string>& notes);

// A <section> with its heading and a sentence on how to read it; close() ends it.
void begin_section(HtmlWriter& html, const std::string& title, const std::string& explanation);

// A table that scrolls by itself where it is wider than the page.
struct ReportTable {
  std::string caption;
  std::vector<std::string> heading;
  std::vector<bool> is_number;  // by column
  struct Cell {
    std::string text;
    std::optional<double> share = {};  // 0 to 1, a bar below the text
  };
  std::vector<std::vector<Cell>> rows;  // the first cell of each is its heading
};
void add_table(HtmlWriter& html, const ReportTable& table);

// The map of bits per weight, when there is one, and the tensors: the largest, the lossiest, and all.
void add_bit_map(HtmlWriter& html, const std::vector<ReportTensor>& tensors, const std::string& id);
void add_tensors(HtmlWriter& html, const std::vector<ReportTensor>& tensors);

void add_run(HtmlWriter& html, const ReportRun& run);
// Ends what begin_page() began.
std::string end_page(HtmlWriter& html, const ReportRun& run);

}  // namespace thimble
