// report_samples.h: made-up results of runs for tests of the pages: one of many layers, with names that try to break
// out of the markup, and the degenerate ones.
#pragma once

#include <string>

#include "quantizer/reports/quantize_report.h"
#include "quantizer/reports/sweep_results.h"

namespace thimble::testing {

// Closes elements, opens a script, ends an attribute, and has a byte that no text has.
extern const std::string kHostileName;

ReportRun sample_run();
QuantizeReport sample_quantize_report(int layers);
std::string sample_quantize_page(int layers);
SweepResults sample_sweep(int layers);

}  // namespace thimble::testing
