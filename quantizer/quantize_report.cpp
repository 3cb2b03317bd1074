// quantize_report.cpp: see quantize_report.h.
#include "quantizer/quantize_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "packer/codec.h"
#include "quantizer/quantize_options.h"
#include "quantizer/report_data.h"

namespace thimble {
namespace {

// Those of matrices with codes.
std::string precision_names(const ArtifactSummary& artifact) {
  std::set<std::string> names;
  for (const StoredTensorSummary& tensor : artifact.tensors)
    if (tensor.coded) names.insert(tensor.precision);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "no codes" : text;
}

// Each without the word that it begins with.
std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    for (const std::string& kind : {std::string("note: "), std::string("warning: ")})
      if (line.starts_with(kind)) line.erase(0, kind.size());
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

ReportSettings resolved_settings(const QuantizeRequest& request) {
  ReportSettings settings{"As resolved", {}};
  auto add = [&](const std::string& name, const std::string& value) { settings.values.emplace_back(name, value); };
  add("method", method_name(request.method));
  add("codec", request.encode.codec ? std::string(codec_of(*request.encode.codec).name()) : "auto");
  add("matrices kept as fp16", fmt::format("of at most {} elements", count_text(request.plan.min_elements)));
  add("output Fisher", request.fisher ? "collected" : "not collected");
  if (request.method != Method::kSlope) return settings;
  const GainTunerOptions tuner = gain_tuner_options(request.distill, request.device);
  add("distillation steps", count_text(tuner.steps));
  if (tuner.steps == 0) return settings;
  add("distillation batch", count_text(tuner.batch));
  add("distillation row rate", fmt::format("{}", tuner.row_rate));
  add("distillation rate of small tensors", fmt::format("{}", tuner.small_rate));
  return settings;
}

QuantizePage collect_page(const QuantizeRequest& request, const QuantizeOutcome& outcome,
                          std::span<const ScoredModel> scores, StageTimes& times, const std::string& device,
                          const std::string& warnings, const CLI::App& command) {
  QuantizePage page;
  page.checkpoint = request.checkpoint;
  page.artifact = request.output;
  page.precision = precision_names(outcome.stored);
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
  if (request.method == Method::kSlope) {
    page.precision += fmt::format(", log2 of the step {:.4f}", outcome.log2_c);
    page.encoded = outcome.encoded;
    page.log2_c = outcome.log2_c;
  }
  page.notes = lines_of(warnings);
  if (!scores.empty() && scores[0].note) page.notes.push_back(*scores[0].note);
  page.tensors = report_tensors(outcome.stored, outcome.rate);
  std::vector<ReportSettings> settings = option_settings(command);
  settings.insert(settings.begin() + 1, {resolved_settings(request), provenance_settings(outcome.stored)});
  page.run = report_run(times, device, std::move(settings));
  return page;
}

}  // namespace thimble
