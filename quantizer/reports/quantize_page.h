// quantize_page.h: the page of `quantize --report`: what became of one model.
// In: plain data, so that pages of any model can be made without quantizing one.  Out: HTML.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "quantizer/methods/slope/slope_outcome.h"
#include "quantizer/reports/report_page.h"

namespace thimble {

// Bits per byte of the original and of the artifact on the same text.
struct ReportScores {
  double before = 0, after = 0;
  std::optional<double> gap_standard_error;
  std::string scope;  // "all 21,454 targets, context 1024, stride 64"
};

struct QuantizePage {
  std::string checkpoint, artifact;  // paths
  std::string precision;             // "trellis256, log2 of the step -10.2991"
  int64_t parameters = 0;
  uint64_t original_bytes = 0, artifact_bytes = 0, code_bytes = 0;
  std::optional<uint64_t> budget_bytes;  // of artifact and code
  std::optional<ReportScores> scores;
  std::vector<EncodedPoint> encoded;  // in the order of the search
  double log2_c = 0;                  // of the artifact, if `encoded` is not empty
  std::vector<std::string> notes;
  std::vector<ReportTensor> tensors;
  ReportRun run;
};

std::string quantize_page(const QuantizePage& page);

// "1.592030", "+0.011197", "+0.011197 ± 0.000800".
std::string bpb_text(double bits_per_byte);
std::string gap_text(double gap, const std::optional<double>& standard_error);

// A path without its folders.
std::string last_name(const std::string& path);

}  // namespace thimble
