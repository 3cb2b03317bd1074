// precision_text.h: what a run made of the model's tensors, in one line for people.
#pragma once

#include <string>

#include "quantizer/pipeline/quantize_job.h"

namespace thimble {

// "trellis256, log2 of the step -10.2991"; "int6 for the 3 most sensitive layers, int5 for the other 9"; "NVFP4 for 20
// matrices, F16 for 12 tensors".
std::string precision_text(const QuantizeRequest& request, const QuantizeOutcome& outcome);

}  // namespace thimble
