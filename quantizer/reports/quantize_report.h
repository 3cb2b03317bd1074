// quantize_report.h: the page of a finished run of `thimble quantize`, collected from its request and outcome.
#pragma once

#include <CLI/CLI.hpp>
#include <span>
#include <string>
#include <vector>

#include "quantizer/pipeline/quantize_job.h"
#include "quantizer/pipeline/score_model.h"
#include "quantizer/reports/quantize_page.h"

namespace thimble {

// `scores`: of checkpoint and artifact, or none. `remarks`: what the user should know of it. `command`: as the user
// gave it.
QuantizePage collect_page(const QuantizeRequest& request, const QuantizeOutcome& outcome,
                          std::span<const ScoredModel> scores, StageTimes& times, const std::string& device,
                          std::vector<std::string> remarks, const CLI::App& command);

// What options come to where none was given.
ReportSettings resolved_settings(const QuantizeRequest& request);

}  // namespace thimble
