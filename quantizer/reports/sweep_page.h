// sweep_page.h: the page of `sweep --report`: bytes against bits per byte, and what each artifact is made of.
// In: plain data.  Out: HTML.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "quantizer/reports/report_page.h"
#include "quantizer/reports/sweep_results.h"

namespace thimble {

// What artifacts hold, by method and budget: of those that are known.
using SweepTensors = std::map<std::pair<std::string, uint64_t>, std::vector<ReportTensor>>;

struct SweepPage {
  SweepResults results;
  SweepTensors tensors;
  std::vector<std::string> notes;
  ReportRun run;
};

std::string sweep_page(const SweepPage& page);

}  // namespace thimble
