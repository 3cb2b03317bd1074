// report_data.cpp: see report_data.h.
#include "quantizer/reports/report_data.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ctime>

#include "packer/codecs/codec.h"
#include "quantizer/console/help_formatter.h"
#include "quantizer/console/version.h"
#include "quantizer/pipeline/quantize_options.h"
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

std::vector<ReportSettings> option_settings(const CLI::App& command) {
  ReportSettings given{"Options given", {}}, fixed{"Options left at their defaults", {}};
  for (const CLI::Option* option : command.get_options()) {
    const std::string name = option->get_name();
    if (option->get_group() == kGeneralGroup) continue;  // how results are shown
    if (option->count() > 0)
      given.values.emplace_back(name, fmt::format("{}", fmt::join(option->results(), " ")));
    else if (!option->get_default_str().empty())
      fixed.values.emplace_back(name, option->get_default_str());
  }
  return {given, fixed};
}

}  // namespace

ReportSettings provenance_settings(const ArtifactSummary& artifact) {
  ReportSettings settings{"What the artifact says it was made with", {}};
  add_values("", parse_json(as_bytes_of(artifact.provenance_json), "the artifact"), settings);
  return settings;
}

ReportSettings resolved_settings(const QuantizeRequest& request) {
  ReportSettings settings{"As resolved", {}};
  auto add = [&](const std::string& name, const std::string& value) { settings.values.emplace_back(name, value); };
  add("method", method_name(request.method));
  add("codec", request.encode.codec ? std::string(codec_of(*request.encode.codec).name()) : "auto");
  add("matrices kept as fp16", fmt::format("of at most {} elements", count_text(request.plan.min_elements)));
  add("output Fisher", request.fisher ? "collected" : "not collected");
  if (request.method != MethodKind::kSlope) return settings;
  const GainTunerOptions& tuner = request.tuner;
  add("effort", level_of(request.effort).name);
  add("distillation steps", count_text(tuner.steps));
  if (tuner.steps == 0) return settings;
  add("distillation batch", count_text(tuner.batch));
  add("distillation row rate", fmt::format("{}", tuner.row_rate));
  add("distillation rate of small tensors", fmt::format("{}", tuner.small_rate));
  return settings;
}

ReportRun report_run(StageTimes& times, const std::string& device, const CLI::App& command,
                     const std::vector<ReportSettings>& own) {
  ReportRun run;
  run.stages = times.stages();
  run.peak_bytes = times.peak_memory_bytes();
  run.has_stage_peaks = times.has_stage_peaks();
  run.settings = option_settings(command);
  run.settings.insert(run.settings.begin() + 1, own.begin(), own.end());
  run.settings.push_back(
      {"Machine", {{"device", device}, {"threads", std::to_string(thread_count())}, {"thimble", kVersion}}});
  run.written = fmt::format("thimble {} on {:%Y-%m-%d at %H:%M} UTC", kVersion, fmt::gmtime(std::time(nullptr)));
  return run;
}

std::optional<IoError> write_report(const std::string& path, const std::function<std::string()>& page,
                                    std::vector<std::string>& files) {
  if (path.empty()) return std::nullopt;
  try {
    write_file_atomically(path, page());
  } catch (const IoError& error) {
    return error;
  }
  files.push_back(path);
  return std::nullopt;
}

}  // namespace thimble
