// sweep_results.h: what `thimble sweep` has found so far: points of bytes against bits per byte, as JSON (from which a
// killed sweep goes on), CSV and a table.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/byte_cursor.h"
#include "runtime/json.h"

namespace thimble {

struct SweepPoint {
  std::string method;
  uint64_t budget_bytes = 0;
  std::string failure;  // why the budget could not be met; empty where it was, and all below is known
  uint64_t artifact_bytes = 0;
  double bits_per_byte = 0;
  std::optional<double> gap_standard_error;  // of the gap to the original
  std::optional<double> predicted_loss;      // unit of matrix_loss.h
  // Distance from the rate-distortion bound, of the matrices with codes.
  std::optional<double> distance_bits_per_weight;
  double seconds = 0;  // to quantize and to score
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
  std::string scored;  // "all 600,000 targets, context 2048, stride 64"
};

struct SweepResults {
  std::string checkpoint;
  int64_t parameters = 0;
  // Hashes of all that decided the points of a method ("slope", "trace") and the score of the checkpoint ("original").
  std::map<std::string, std::string> keys;
  std::optional<OriginalScore> original;
  std::vector<SweepPoint> points;
  std::vector<ReferencePoint> references;

  const SweepPoint* find(const std::string& method, uint64_t budget_bytes) const;
  double bits_per_weight(uint64_t bytes) const {
    return 8.0 * static_cast<double>(bytes) / static_cast<double>(parameters);
  }
};

Json to_json(const SweepResults& results);
// The inverse, less the references. A file that is anything else is a FormatError(path).
SweepResults parse_sweep_results(Bytes text, const std::string& path);

// series,budget_bytes,artifact_bytes,bits_per_weight,bits_per_byte,gap_bits_per_byte: a line for the original, for each
// point that was met and for each reference.
std::string to_csv(const SweepResults& results);

// A table for people, failures below it.
std::string to_text(const SweepResults& results);

// Lines of label,bytes,bpb, after that very heading or without one. Labels: 1 to 64 bytes without commas, double quotes
// and control characters. Anything else is a FormatError(path) that names the line.
std::vector<ReferencePoint> parse_reference_points(Bytes text, const std::string& path);

}  // namespace thimble
