// run_plan.h: the stages that commands expect, for progress_bar.h. Costs are those that are expected of a run, in
// seconds (expected_time.h), or rough shares of the time that runs took on a CPU; measured time takes their place as a
// run goes on.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "quantizer/console/progress_bar.h"
#include "quantizer/pipeline/expected_time.h"
#include "quantizer/pipeline/quantize_job.h"

namespace thimble {

std::vector<PlannedStage> quantize_plan(const QuantizeRequest& request, bool has_scoring,
                                        const std::optional<RunSeconds>& expected);
std::vector<PlannedStage> sweep_plan(const QuantizeRequest& base, size_t points);
std::vector<PlannedStage> eval_plan(size_t models, bool with_divergence);
std::vector<PlannedStage> audit_plan();

}  // namespace thimble
