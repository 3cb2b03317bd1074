// quantize_report.cpp: text and JSON of quantize_report.h.
#include "quantizer/reports/quantize_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "gptq/trace/plan.h"
#include "quantizer/console/progress_bar.h"
#include "quantizer/pipeline/quantize_options.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

Json to_json(const LayerOutcome& layer) {
  Json json = {{"name", layer.name}, {"precision", layer.precision}, {"sensitivity", layer.sensitivity}};
  if (layer.output_fisher) json["output_fisher"] = *layer.output_fisher;
  if (layer.predicted_loss) json["predicted_loss"] = *layer.predicted_loss;
  if (const auto& report = layer.report)
    json.update({{"clip_fraction", report->clip_fraction},
                 {"weight_mse", report->weight_mse},
                 {"weighted_loss", report->weighted_loss},
                 {"damping", report->damping},
                 {"dead_columns", report->dead_columns}});
  if (const auto& report = layer.slope_report)
    json.update({{"weight_mse", report->weight_mse},
                 {"weighted_loss", report->weighted_loss},
                 {"estimated_bits", report->estimated_bits},
                 {"damping", report->damping},
                 {"dead_columns", report->dead_columns}});
  return json;
}

// Means of what --fisher collected outside the layers: the output head, and tables by the rows that tokens look up.
Json to_json(const LossStatistics& loss) {
  Json tables = Json::object();
  for (const auto& [table, fisher] : loss.lookup_fisher) tables[table]["lookup_fisher"] = fisher.mean();
  for (const auto& [table, counts] : loss.row_counts) {
    tables[table]["rows"] = counts.size();
    tables[table]["rows_seen"] = std::ranges::count_if(counts, [](int64_t count) { return count > 0; });
  }
  Json json = {{"tokens", loss.output_fisher.begin()->second.token_count}, {"tables", tables}};
  for (const auto& [name, hessian] : loss.head) {
    json["head"] = {{"name", name}, {"sensitivity", trace_sensitivity(*hessian)}};
    if (auto fisher = loss.output_fisher.find(name); fisher != loss.output_fisher.end())
      json["head"]["output_fisher"] = fisher->second.mean();
  }
  return json;
}

Json to_json(const DistillReport& report) {
  return {{"steps", report.steps},
          {"sequences", report.sequences},
          {"held_out", report.held_out},
          {"divergence_before", report.divergence_before},
          {"divergence_after", report.divergence_after},
          {"kept", report.is_kept}};
}

std::string distill_text(const QuantizeOutcome& outcome, bool is_wanted) {
  if (!outcome.distill) return is_wanted ? "no: needs at least two calibration sequences" : "no";
  const DistillReport& report = *outcome.distill;
  return fmt::format("KL {:.6f} to {:.6f} nats per token on {} held out{}", report.divergence_before,
                     report.divergence_after, counted(report.held_out, "sequence"), report.is_kept ? "" : ": not kept");
}

std::string trace_text(const TracePlanOptions& plan, int64_t high, int64_t layers) {
  if (layers == 0) return "no layer was solved";
  if (high == 0) return fmt::format("int{} for {}", plan.low_bits, counted(layers, "layer"));
  if (high >= layers) return fmt::format("int{} for {}", plan.high_bits, counted(layers, "layer"));
  return fmt::format("int{} for the {}, int{} for the other {}", plan.high_bits,
                     high == 1 ? "most sensitive layer" : fmt::format("{} most sensitive layers", high), plan.low_bits,
                     layers - high);
}

std::string nvfp4_text(const std::map<std::string, int64_t>& precisions) {
  const auto found = precisions.find("nvfp4");
  std::string text =
      found == precisions.end() ? "NVFP4 for no matrix" : "NVFP4 for " + counted(found->second, "matrix", "matrices");
  for (const auto& [name, count] : precisions)
    if (name != "nvfp4") text += fmt::format(", {} for {}", name, counted(count, "tensor"));
  return text;
}

}  // namespace

double QuantizeReport::bits_per_parameter() const {
  return outcome.parameters == 0
             ? 0
             : 8.0 * static_cast<double>(outcome.artifact_bytes) / static_cast<double>(outcome.parameters);
}

std::string QuantizeReport::precision() const {
  switch (request.method) {
    case MethodKind::kSlope:
      return fmt::format("{}, log2 of the step {:.4f}", trellis_name(request.slope.trellis_bits), outcome.log2_c);
    case MethodKind::kTrace:
      return trace_text(request.plan, outcome.high_count, static_cast<int64_t>(outcome.layers.size()));
    case MethodKind::kNvfp4: break;
  }
  return nvfp4_text(outcome.precisions);
}

std::vector<std::string> QuantizeReport::warnings() const {
  std::vector<std::string> warnings;
  if (!outcome.fill_reason.empty())
    warnings.push_back(fmt::format("{} of {} used: {}", fill_text(*outcome.fill),
                                   request.budget_bytes ? "the budget is" : "what --bits-per-weight allows is",
                                   outcome.fill_reason));
  if (outcome.artifact_bytes > outcome.original_bytes)
    warnings.push_back(fmt::format("the artifact is larger than its checkpoint: {} against {}",
                                   bytes_text(outcome.artifact_bytes), bytes_text(outcome.original_bytes)));
  return warnings;
}

std::vector<std::string> QuantizeReport::remarks() const {
  std::vector<std::string> remarks;
  if (!outcome.work_note.empty()) remarks.push_back(outcome.work_note);
  size_t dead_columns = 0;
  std::vector<std::string> with_dead_columns;
  auto add_dead = [&](const LayerOutcome& layer, const std::vector<int64_t>& dead) {
    dead_columns += dead.size();
    if (!dead.empty()) with_dead_columns.push_back(layer.name);
  };
  for (const LayerOutcome& layer : outcome.layers) {
    if (layer.slope_report) add_dead(layer, layer.slope_report->dead_columns);  // its damping differs by layer anyway
    if (!layer.report) continue;
    if (layer.report->damping > kTraceDamping * 1.0001)
      remarks.push_back(
          fmt::format("{}: damping raised to {:.3g} of the mean diagonal", layer.name, layer.report->damping));
    add_dead(layer, layer.report->dead_columns);
  }
  if (with_dead_columns.size() == 1)
    remarks.push_back(
        fmt::format("{}: {} never active, codes 0", with_dead_columns[0], counted(dead_columns, "input column")));
  else if (dead_columns > 0)
    remarks.push_back(fmt::format("{} of {} never active, codes 0", counted(dead_columns, "input column"),
                                  counted(with_dead_columns.size(), "layer")));
  if (!scores.empty() && scores[0].note) remarks.push_back(*scores[0].note);
  return remarks;
}

Json to_json(const QuantizeReport& report, StageTimes& times) {
  const QuantizeRequest& request = report.request;
  const QuantizeOutcome& outcome = report.outcome;
  Json layers = Json::array();
  for (const LayerOutcome& layer : outcome.layers) layers.push_back(to_json(layer));
  Json json = {{"output", request.output},
               {"parameters", outcome.parameters},
               {"original_bytes", outcome.original_bytes},
               {"artifact_bytes", outcome.artifact_bytes},
               {"code_bytes", request.code_bytes},
               {"total_bytes", outcome.artifact_bytes + request.code_bytes},
               {"bits_per_parameter", report.bits_per_parameter()},
               {"high_count", outcome.high_count},
               {"precisions", outcome.precisions},
               {"pruned_codes", outcome.pruned_codes},
               {"encodes", outcome.encodes},
               {"method", method_name(request.method)},
               {"device", report.device},
               {"layers", layers},
               {"seconds", times.to_json()},
               {"stage_peak_memory_bytes", times.memory_to_json()},
               {"peak_memory_bytes", times.peak_memory_bytes()}};
  if (request.method == MethodKind::kSlope) {
    json["effort"] = level_of(request.effort).name;
    json["log2_c"] = outcome.log2_c;
  }
  if (!request.report.empty()) json["report"] = request.report;
  if (outcome.rate.total.weights > 0) json["rate"] = to_json(outcome.rate, !outcome.loss.empty());
  if (outcome.distill) json["distill"] = to_json(*outcome.distill);
  for (const MemoryPlan& plan : outcome.memory_plans) json["memory_plans"].push_back(to_json(plan));
  if (request.budget_bytes) json["budget_bytes"] = *request.budget_bytes;
  if (!outcome.work_note.empty()) json["notes"].push_back(outcome.work_note);
  if (outcome.fill) json["fill"] = *outcome.fill;
  if (!outcome.fill_reason.empty()) json["fill_reason"] = outcome.fill_reason;
  json["warnings"] = report.warnings();
  if (!outcome.loss.empty()) json["loss_statistics"] = to_json(outcome.loss);
  if (const auto& scores = report.scores; !scores.empty()) {
    json["evaluation"] = {{"before", to_json(scores[0].report)}, {"after", to_json(scores[1].report)}};
    json["evaluation"].update(to_json(report.gap()));
    json["evaluation"]["notes"] = notes_json({scores[0].note});
  }
  return json;
}

std::string to_text(const QuantizeReport& report, StageTimes& times, const std::vector<std::string>& files) {
  const QuantizeRequest& request = report.request;
  const QuantizeOutcome& outcome = report.outcome;
  std::vector<std::pair<std::string, std::string>> facts = {{"quantized", request.checkpoint}};
  auto add = [&](const std::string& key, const std::string& value) { facts.emplace_back(key, value); };
  add("parameters", count_text(outcome.parameters));
  add("original", bytes_text(outcome.original_bytes));
  add("artifact",
      fmt::format("{} ({:.3f} bits per parameter)", bytes_text(outcome.artifact_bytes), report.bits_per_parameter()));
  if (request.code_bytes > 0) add("code", bytes_text(request.code_bytes));
  if (request.budget_bytes)
    add("budget", fmt::format("{} (fill {}, {} left)", bytes_text(*request.budget_bytes), fill_text(*outcome.fill),
                              bytes_text(*request.budget_bytes - request.code_bytes - outcome.artifact_bytes)));
  add("precision", report.precision());
  if (request.method == MethodKind::kSlope) add("effort", level_of(request.effort).name);
  if (request.method == MethodKind::kSlope) add("distilled", distill_text(outcome, request.tuner.steps > 0));
  if (outcome.pruned_codes > 0) add("pruned", counted(outcome.pruned_codes, "code") + " of +-1 set to 0");
  if (const auto& scores = report.scores; !scores.empty()) {
    add("BPB before", fmt::format("{:.6f}", scores[0].report.bits_per_byte()));
    add("BPB after", fmt::format("{:.6f} ({})", scores[1].report.bits_per_byte(), to_text(report.gap())));
    add("scored", scored_text(scores[1].report));
  }
  add("device", report.device);
  for (const StageTimes::Stage& stage : times.stages()) add(stage.name, duration_text(stage.seconds));
  add("peak memory", bytes_text(times.peak_memory_bytes()));
  add("written", fmt::format("{}", fmt::join(files, ", ")));
  std::string text = request.rate_bound ? to_text(outcome.rate) + "\n" : "";
  for (const std::string& warning : report.warnings()) text += "warning: " + warning + "\n";
  for (const std::string& remark : report.remarks()) text += "note: " + remark + "\n";
  return text + facts_text(facts);
}

}  // namespace thimble
