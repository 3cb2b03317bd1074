// report_data.cpp: see report_data.h.
#include "quantizer/reports/report_data.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>

#include "quantizer/console/version.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

void add_values(const std::string& name, const Json& value, ReportSettings& settings) {
  if (value.is_object()) {
    for (const auto& [key, member] : value.items())
      add_values(name.empty() ? key : name + ", " + key, member, settings);
    return;
  }
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  settings.values.emplace_back(name, std::move(text));
}

// Options that say how results are shown.
bool is_about_output(const std::string& name) {
  static const std::vector<std::string> kNames = {"--help", "--help-all", "--json", "--quiet"};
  return std::ranges::count(kNames, name) > 0;
}

}  // namespace

std::vector<ReportTensor> report_tensors(const ArtifactSummary& artifact, const ModelRate& rate) {
  double loss = 0;
  for (const auto& [name, matrix] : rate.matrices) loss += matrix.predicted_loss;
  std::vector<ReportTensor> tensors;
  for (const StoredTensorSummary& stored : artifact.tensors) {
    ReportTensor& tensor =
        tensors.emplace_back(ReportTensor{stored.name, shape_text(stored.shape), stored.precision, stored.stored_bytes,
                                          stored.bits_per_weight, stored.coded && stored.elements > 0, std::nullopt});
    if (auto found = rate.matrices.find(stored.name); found != rate.matrices.end())
      tensor.loss_share = loss > 0 ? found->second.predicted_loss / loss : 0;
  }
  return tensors;
}

std::vector<ReportSettings> option_settings(const CLI::App& command) {
  ReportSettings given{"Options given", {}}, fixed{"Options left at their defaults", {}};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (is_about_output(name)) continue;
    if (option->count() > 0)
      given.values.emplace_back(name, fmt::format("{}", fmt::join(option->results(), " ")));
    else if (!option->get_default_str().empty())
      fixed.values.emplace_back(name, option->get_default_str());
  }
  return {given, fixed};
}

ReportSettings provenance_settings(const ArtifactSummary& artifact) {
  ReportSettings settings{"What the artifact says it was made with", {}};
  add_values("", parse_json(as_bytes_of(artifact.provenance_json), "the artifact"), settings);
  return settings;
}

ReportRun report_run(StageTimes& times, const std::string& device, std::vector<ReportSettings> settings) {
  ReportRun run;
  for (const StageTimes::Stage& stage : times.stages())
    run.stages.push_back({stage.name, stage.seconds, stage.peak_bytes});
  run.peak_bytes = times.peak_memory_bytes();
  run.has_stage_peaks = times.has_stage_peaks();
  run.settings = std::move(settings);
  run.settings.push_back(
      {"Machine", {{"device", device}, {"threads", std::to_string(thread_count())}, {"thimble", kVersion}}});
  run.written = fmt::format("thimble {} on {:%Y-%m-%d at %H:%M} UTC", kVersion, fmt::gmtime(std::time(nullptr)));
  return run;
}

std::optional<IoError> write_report(const std::string& path, const std::string& page) {
  try {
    write_file_atomically(path, page);
  } catch (const IoError& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace thimble
