// quantize_report.h: what `thimble quantize` says of a finished run: as text, as JSON and as a page.
// In: plain data, so that reports of any model can be made without quantizing one.
#pragma once

#include <string>
#include <vector>

#include "quantizer/pipeline/quantize_job.h"
#include "quantizer/pipeline/score_model.h"
#include "quantizer/reports/report_page.h"

namespace thimble {

struct QuantizeReport {
  QuantizeRequest request;
  QuantizeOutcome outcome;
  std::vector<ScoredModel> scores;  // of checkpoint and artifact on the same text, or none
  std::string device;

  BpbGap gap() const { return gap_between(scores[0].report, scores[1].report); }
  double bits_per_parameter() const { return bits_each(outcome.artifact_bytes, outcome.parameters); }
  // What became of the tensors, in one line: "trellis256, log2 of the step -10.2991"; "NVFP4 for 20 matrices, F16 for
  // 12 tensors".
  std::string precision() const;
  // What an artifact's size should not have surprised anybody with.
  std::vector<std::string> warnings() const;
  // What became of the work folder, layers of method trace whose damping had to be raised, layers with columns that no
  // token activated, and what text was scored.
  std::vector<std::string> remarks() const;
};

// `files`: all that was written.
std::string to_text(const QuantizeReport& report, StageTimes& times, const std::vector<std::string>& files);
Json to_json(const QuantizeReport& report, StageTimes& times);
std::string quantize_page(const QuantizeReport& report, const ReportRun& run);

}  // namespace thimble
