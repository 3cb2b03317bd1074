// sweep_page.h: the page of `sweep --report`: bytes against bits per byte, and what each artifact is made of.
// In: plain data.  Out: HTML.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "quantizer/reports/report_page.h"
#include "quantizer/reports/report_tensors.h"
#include "quantizer/reports/svg_chart.h"
#include "quantizer/reports/sweep_results.h"

namespace thimble {

// What artifacts hold, by method and budget: of those that are known.
using SweepTensors = std::map<std::pair<std::string, uint64_t>, std::vector<ReportTensor>>;

// Bits per byte over bytes: a curve for each method and each label of references, of the points that were met.
Chart sweep_chart(const SweepResults& results);

std::string sweep_page(const SweepResults& results, const SweepTensors& tensors, const ReportRun& run);

}  // namespace thimble
