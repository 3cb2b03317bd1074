// statistics_check.h: do calibration statistics from a file belong to this checkpoint?
#pragma once

#include <string>

#include "gptq/statistics/fisher.h"
#include "quantizer/checkpoints/model_source.h"

namespace thimble {

// Every Hessian, Fisher and count in `path` must name a matrix of the checkpoint and have its columns or rows;
// `needs_fisher`: and every layer with a Hessian an output Fisher. Else a FormatError(path).
void check_statistics(const CalibrationStatistics& statistics, bool needs_fisher, const OpenedCheckpoint& source,
                      const std::string& path);

}  // namespace thimble
