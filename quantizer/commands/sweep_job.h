// sweep_job.h: the whole of `thimble sweep`: one calibration, then for each method and budget an artifact, and its bits
// per byte, measured on the file.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/console/file_roles.h"
#include "quantizer/pipeline/quantize_job.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/pipeline/token_source.h"
#include "quantizer/reports/sweep_results.h"

namespace thimble {

// What the name of each output ends in, after the prefix.
inline constexpr std::array kSweepOutputs = {".json", ".csv", ".gp", ".svg", ".png"};

struct SweepRequest {
  QuantizeRequest base;  // checkpoint, device, calibration, work folder, options of the methods
  std::vector<MethodKind> methods;
  // One of them.
  std::vector<uint64_t> budgets_bytes;  // of artifacts, without code
  std::vector<double> bits_per_weight;  // of the whole artifact, by all parameters
  EncodingOptions encoding;
  TokenSource source;
  std::string prefix;      // of outputs: kSweepOutputs
  std::string references;  // CSV file; empty: none
  bool keep_artifacts = false;
  FileRoles roles;  // of all files that are known before the checkpoint is open
};

struct SweepOutcome {
  SweepResults results;
  std::vector<ReportSettings> settings;  // of each method
  std::vector<std::string> files;        // written
};

// Every score is kept in the work folder under the hash of all that decided it, and taken from there when the sweep is
// started again; an artifact to keep must still be the one that was scored. JSON and CSV are written anew after every
// point, and say that they are incomplete until the end. Budgets that cannot be met become points that say so;
// CheckError when none can be met. Rank 0 gets the outcome; the others help to calibrate, solve and score, and get an
// empty one.
SweepOutcome run_sweep(const SweepRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
                       Console& console);

}  // namespace thimble
