// report_data.h: what the pages show, collected from a run: from its command line, its stages and its artifacts.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

#include "packer/describe_artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/pipeline/model_rate.h"
#include "quantizer/reports/report_page.h"
#include "runtime/base/error.h"

namespace thimble {

// Every tensor of an artifact; `rate`: the losses that are known.
std::vector<ReportTensor> report_tensors(const ArtifactSummary& artifact, const ModelRate& rate);

// The options of a command: those given, with their values, and the defaults of the others where they are fixed.
std::vector<ReportSettings> option_settings(const CLI::App& command);

// What the artifact says it was made with: "calibration, length": "1024".
ReportSettings provenance_settings(const ArtifactSummary& artifact);

// Stages, memory and when the page was written. `settings`: in the order of the page.
ReportRun report_run(StageTimes& times, const std::string& device, std::vector<ReportSettings> settings);

// Writes a page. What went wrong, if it did: the result is worth showing all the same, so that it is thrown afterwards.
std::optional<IoError> write_report(const std::string& path, const std::string& page);

}  // namespace thimble
