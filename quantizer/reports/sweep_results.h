// sweep_results.h: what `thimble sweep` has found so far: points of bytes against bits per byte, as JSON, CSV, a table
// and a page.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "eval/score/bpb.h"
#include "quantizer/console/console.h"
#include "quantizer/reports/report_page.h"
#include "quantizer/reports/report_tensors.h"
#include "quantizer/reports/svg_chart.h"
#include "runtime/base/byte_cursor.h"
#include "runtime/base/json.h"

namespace thimble {

struct SweepPoint {
  std::string method;
  uint64_t budget_bytes = 0;
  std::string failure;      // why the budget could not be met; empty where it was, and all below is known
  std::string fill_reason;  // why less than 99.9 % of the budget is used; empty where that is
  uint64_t artifact_bytes = 0;
  uint64_t artifact_hash = 0;  // XXH3-64 of the artifact that was scored
  double bits_per_byte = 0;
  std::optional<double> gap_standard_error;  // BpbGap, from the original
  std::optional<double> predicted_loss;      // unit of matrix_loss.h
  // Distance from the rate-distortion bound, of the matrices with codes.
  std::optional<double> distance_bits_per_weight;
  double seconds = 0;  // to quantize and to score
  // What the artifact holds, where this run made it or found it kept.
  std::vector<ReportTensor> tensors;

  // What a killed sweep goes on from: never from the reports, which anyone may change.
  friend auto members(SweepPoint& p) {
    return std::tie(p.method, p.budget_bytes, p.failure, p.fill_reason, p.artifact_bytes, p.artifact_hash,
                    p.bits_per_byte, p.gap_standard_error, p.predicted_loss, p.distance_bits_per_weight, p.seconds);
  }
};

// A result of something else, to be drawn beside the others.
struct ReferencePoint {
  std::string label;
  uint64_t bytes = 0;
  double bits_per_byte = 0;
};

struct OriginalScore {
  uint64_t file_bytes = 0;
  double bits_per_byte = 0;
  std::string scored;  // scored_text()
  LossBlocks blocks;

  friend auto members(OriginalScore& s) {
    return std::tie(s.file_bytes, s.bits_per_byte, s.scored, s.blocks.loss_nats, s.blocks.text_bytes);
  }
};

struct SweepResults {
  std::string checkpoint;
  int64_t parameters = 0;
  size_t planned_points = 0;
  bool is_complete = false;  // all planned points are there, and everything is written
  std::optional<OriginalScore> original;
  std::vector<SweepPoint> points;
  std::vector<ReferencePoint> references;
  std::vector<std::optional<std::string>> notes;  // notes_text()

  double bits_per_weight(uint64_t bytes) const { return bits_each(bytes, parameters); }
  // From the original, which must be there.
  BpbGap gap_of(const SweepPoint& point) const {
    return {point.bits_per_byte - original->bits_per_byte, point.gap_standard_error};
  }
};

// One line of a table or the CSV: the original, a point or a reference. Of a point that was not met there is only the
// note, which says why; that of another says why its budget is not filled.
struct SweepLine {
  std::string series;
  std::optional<uint64_t> budget = {}, bytes = {};
  double bits_per_byte = 0;
  std::optional<BpbGap> gap = {};
  std::string note = {};
  std::optional<double> seconds = {};
};
std::vector<SweepLine> lines_of(const SweepResults& results);

Json to_json(const SweepResults& results);

// The heading, then a line for the original, for each point and for each reference. The note of a point that could not
// be met says why. Unless the results are complete the last line is "incomplete", and its note says how far they got.
constexpr const char* kSweepCsvHeading =
    "series,budget_bytes,artifact_bytes,bits_per_weight,bits_per_byte,gap_bits_per_byte,gap_standard_error,note";
std::string to_csv(const SweepResults& results);

// A table for people, with the same lines.
std::string to_text(const SweepResults& results);

// Lines of label,bytes,bpb, after that very heading or without one. Labels: 1 to 64 bytes without commas, double quotes
// and control characters. Anything else is a FormatError(path) that names the line.
std::vector<ReferencePoint> parse_reference_points(Bytes text, const std::string& path);

// Bits per byte over bytes: a curve for each method and each label of references, of the points that were met.
Chart sweep_chart(const SweepResults& results);

// The page of `sweep --report`: bytes against bits per byte, and what each artifact is made of.
std::string sweep_page(const SweepResults& results, const ReportRun& run);

}  // namespace thimble
