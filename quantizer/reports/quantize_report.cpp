// quantize_report.cpp: see quantize_report.h.
#include "quantizer/reports/quantize_report.h"

#include <fmt/format.h>

#include "packer/codecs/codec.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/reports/precision_text.h"
#include "quantizer/reports/report_data.h"

namespace thimble {

ReportSettings resolved_settings(const QuantizeRequest& request) {
  ReportSettings settings{"As resolved", {}};
  auto add = [&](const std::string& name, const std::string& value) { settings.values.emplace_back(name, value); };
  add("method", method_name(request.method));
  add("codec", request.encode.codec ? std::string(codec_of(*request.encode.codec).name) : "auto");
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

QuantizePage collect_page(const QuantizeRequest& request, const QuantizeOutcome& outcome,
                          std::span<const ScoredModel> scores, StageTimes& times, const std::string& device,
                          std::vector<std::string> remarks, const CLI::App& command) {
  QuantizePage page;
  page.checkpoint = request.checkpoint;
  page.artifact = request.output;
  page.precision = precision_text(request, outcome);
  page.parameters = outcome.parameters;
  page.original_bytes = outcome.original_bytes;
  page.artifact_bytes = outcome.artifact_bytes;
  page.code_bytes = request.code_bytes;
  page.budget_bytes = request.budget_bytes;
  if (scores.size() == 2) {
    const BpbReport &before = scores[0].report, &after = scores[1].report;
    page.scores = ReportScores{before.bits_per_byte(), after.bits_per_byte(), gap_between(before, after).standard_error,
                               scored_text(after)};
  }
  if (request.method == MethodKind::kSlope) {
    page.encoded = outcome.encoded;
    page.log2_c = outcome.log2_c;
  }
  page.notes = std::move(remarks);
  page.tensors = report_tensors(outcome.stored, outcome.rate);
  std::vector<ReportSettings> settings = option_settings(command);
  settings.insert(settings.begin() + 1, {resolved_settings(request), provenance_settings(outcome.stored)});
  page.run = report_run(times, device, std::move(settings));
  return page;
}

}  // namespace thimble
