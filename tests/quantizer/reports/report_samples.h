// report_samples.h: made-up results of runs for tests of the pages: one of many layers, with names that try to break
// out of the markup, and the degenerate ones.
#pragma once

#include <string>

#include "quantizer/reports/quantize_page.h"
#include "quantizer/reports/sweep_page.h"

namespace thimble::testing {

// Closes elements, opens a script, ends an attribute, and has a byte that no text has.
extern const std::string kHostileName;

std::vector<ReportTensor> sample_tensors(int layers);
QuantizePage sample_quantize_page(int layers);
SweepPage sample_sweep_page(int layers);

}  // namespace thimble::testing
