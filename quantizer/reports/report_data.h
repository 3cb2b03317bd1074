// report_data.h: what the pages show, collected from a run: from its command line, its stages and its artifacts.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "packer/describe_artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/pipeline/quantize_request.h"
#include "quantizer/reports/report_page.h"
#include "runtime/base/error.h"

namespace thimble {

// What the artifact says it was made with: "calibration, length": "1024".
ReportSettings provenance_settings(const ArtifactSummary& artifact);

// What options come to where none was given.
ReportSettings resolved_settings(const QuantizeRequest& request);

// Stages, memory and when the page was written. Settings: the options given, then the run's `own`, then the defaults of
// the other options where they are fixed.
ReportRun report_run(StageTimes& times, const std::string& device, const CLI::App& command,
                     const std::vector<ReportSettings>& own);

// Writes the page that was asked for, if any: then `path` joins `files`. What went wrong, if it did: the result is
// worth showing all the same, so that it is thrown afterwards.
std::optional<IoError> write_report(const std::string& path, const std::function<std::string()>& page,
                                    std::vector<std::string>& files);

}  // namespace thimble
