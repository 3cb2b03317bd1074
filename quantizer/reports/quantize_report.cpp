// quantize_report.cpp: see quantize_report.h.
#include "quantizer/reports/quantize_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "gptq/trace/plan.h"
#include "quantizer/console/progress_bar.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/reports/report_tensors.h"
#include "quantizer/reports/svg_chart.h"
#include "quantizer/reports/sweep_results.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

Json to_json(const LayerOutcome& layer) {
  Json json = {{"name", layer.name}, {"precision", layer.precision}, {"sensitivity", layer.sensitivity}};
  if (layer.output_fisher) json["output_fisher"] = *layer.output_fisher;
  if (layer.predicted_loss) json["predicted_loss"] = *layer.predicted_loss;
  auto add = [&](const auto& report, const char* own, double value) {
    json.update({{"weight_mse", report.weight_mse},
                 {"weighted_loss", report.weighted_loss},
                 {own, value},
                 {"damping", report.damping},
                 {"dead_columns", report.dead_columns}});
  };
  if (const auto& report = layer.report) add(*report, "clip_fraction", report->clip_fraction);
  if (const auto& report = layer.slope_report) add(*report, "estimated_bits", report->estimated_bits);
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
    json["head"] = {{"name", name}, {"sensitivity", trace_sensitivity(StoredHessian(hessian))}};
    if (auto fisher = loss.output_fisher.find(name); fisher != loss.output_fisher.end())
      json["head"]["output_fisher"] = fisher->second.mean();
  }
  return json;
}

Json to_json(const DistillReport& report) {
  return {{"steps", report.steps},
          {"sequences", report.sequences},
          {"held_out", report.held_out},
          {"data_share", report.data_share},
          {"target_temperature", report.temperature},
          {"divergence_before", report.divergence_before},
          {"divergence_after", report.divergence_after},
          {"kept", report.is_kept}};
}

Json to_json(const LearnReport& report) {
  Json json = to_json(static_cast<const DistillReport&>(report));
  json["changed_codes"] = report.changed_codes;
  json["rate_weight"] = report.rate_weight;
  return json;
}

// Of what distillation or learning came to.
std::string divergence_text(const DistillReport& report) {
  std::string target = report.temperature != 1 ? fmt::format(", at temperature {:.3f}", report.temperature) : "";
  if (report.data_share > 0) target += fmt::format(", data share {}", report.data_share);
  return fmt::format("KL {:.6f} to {:.6f} nats per token on {} held out{}{}", report.divergence_before,
                     report.divergence_after, counted(report.held_out, "sequence"), target,
                     report.is_kept ? "" : ": not kept");
}

std::string distill_text(const QuantizeOutcome& outcome, bool is_wanted) {
  if (outcome.learning && outcome.learning->is_kept) return "no: learned";
  if (!outcome.distill) return is_wanted ? "no: needs at least two calibration sequences" : "no";
  return divergence_text(*outcome.distill);
}

// "int6 for 3 matrices, int5 for 9 matrices, F16 for 12 tensors": codes, whose names are in lower case, come first.
std::string precisions_text(const std::map<std::string, int64_t>& precisions) {
  std::vector<std::string> parts;
  for (auto found = precisions.rbegin(); found != precisions.rend(); ++found) {
    const auto& [name, count] = *found;
    const bool has_codes = std::islower(static_cast<unsigned char>(name[0])) != 0;
    parts.push_back(fmt::format("{} for {}", name == "nvfp4" ? "NVFP4" : name,
                                has_codes ? counted(count, "matrix", "matrices") : counted(count, "tensor")));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

// The page.

double ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

KeyFigure size_figure(const QuantizeOutcome& outcome) {
  const double share = ratio(outcome.artifact_bytes, outcome.original_bytes);
  return {"Artifact", bytes_text(outcome.artifact_bytes),
          fmt::format("{} of the original's {}", percent_text(share), bytes_text(outcome.original_bytes)), share};
}

KeyFigure budget_figure(uint64_t artifact_bytes, uint64_t code_bytes, uint64_t budget) {
  const uint64_t total = artifact_bytes + code_bytes;
  const std::string code = code_bytes > 0 ? ", " + bytes_text(code_bytes) + " of it for code" : "";
  const std::string left =
      total <= budget ? bytes_text(budget - total) + " left" : bytes_text(total - budget) + " over";
  const double share = ratio(total, budget);
  return {"Budget", fill_text(share) + " used", fmt::format("{}{}; {}", bytes_text(budget), code, left), share};
}

void add_headline(HtmlWriter& html, const QuantizeReport& report) {
  const QuantizeOutcome& outcome = report.outcome;
  std::vector<KeyFigure> figures = {size_figure(outcome)};
  if (const auto& budget = report.request.budget_bytes)
    figures.push_back(budget_figure(outcome.artifact_bytes, report.request.code_bytes, *budget));
  if (const auto& scores = report.scores; !scores.empty())
    figures.push_back({"Bits per byte of text", bpb_text(scores[1].report.bits_per_byte()),
                       fmt::format("{} beside the original's {}", gap_text(report.gap()),
                                   bpb_text(scores[0].report.bits_per_byte()))});
  figures.push_back({"Bits per parameter", fmt::format("{:.3f}", report.bits_per_parameter()),
                     fmt::format("{} parameters; {}", count_text(outcome.parameters), report.precision())});
  add_key_figures(html, figures);
  std::vector<std::string> notes = report.warnings();
  std::ranges::move(report.remarks(), std::back_inserter(notes));
  add_notes(html, notes);
}

// As of a sweep with one artifact, beside it the original as a point too.
Chart score_chart(const QuantizeReport& report) {
  const double before = report.scores[0].report.bits_per_byte();
  SweepResults sweep;
  sweep.original.emplace().bits_per_byte = before;
  sweep.references = {{"original", report.outcome.original_bytes, before}};
  SweepPoint& artifact = sweep.points.emplace_back();
  artifact.method = "artifact";
  artifact.artifact_bytes = report.outcome.artifact_bytes;
  artifact.bits_per_byte = report.scores[1].report.bits_per_byte();
  artifact.gap_standard_error = report.gap().standard_error;
  Chart chart = sweep_chart(sweep);
  chart.horizontal[0].name = "the original's bits per byte";
  return chart;
}

Chart search_chart(const QuantizeReport& report) {
  const QuantizeOutcome& outcome = report.outcome;
  uint64_t most = outcome.artifact_bytes;
  for (const EncodedPoint& encoded : outcome.encoded) most = std::max(most, encoded.artifact_bytes);
  const ByteUnit unit = byte_unit(most);
  auto point = [&](const std::string& name, const EncodedPoint& encoded, bool is_chosen) {
    return ChartPoint{
        encoded.log2_c, static_cast<double>(encoded.artifact_bytes) / unit.bytes, std::nullopt,
        fmt::format("{}: log2 of the step {:.4f}, {}", name, encoded.log2_c, bytes_text(encoded.artifact_bytes)),
        is_chosen};
  };
  Chart chart;
  chart.id = "search";
  chart.title = "The search for the step";
  chart.description = fmt::format("{} artifacts were encoded on the way to {} at a step of 2 to the power of {:.4f}.",
                                  outcome.encoded.size(), bytes_text(outcome.artifact_bytes), outcome.log2_c);
  chart.x_label = "log2 of the step";
  chart.y_label = unit.name;
  ChartSeries tried{"tried on the way", {}, false};
  for (const EncodedPoint& encoded : outcome.encoded)
    tried.points.push_back(point(std::to_string(tried.points.size() + 1), encoded, false));
  const ChartPoint found = point("this artifact", {outcome.log2_c, outcome.artifact_bytes}, true);
  chart.series = {std::move(tried), {"this artifact", {found}, false}};
  const auto& budget = report.request.budget_bytes;
  if (budget && *budget > report.request.code_bytes)
    chart.horizontal = {{"what the budget leaves for the artifact",
                         static_cast<double>(*budget - report.request.code_bytes) / unit.bytes}};
  return chart;
}

void add_charts(HtmlWriter& html, const QuantizeReport& report) {
  const bool is_scored = !report.scores.empty(), is_searched = !report.outcome.encoded.empty();
  if (!is_scored && !is_searched) return;
  begin_section(html, "Size and quality",
                is_scored ? fmt::format("Further left is smaller, further down is better. Scored on {}.{}",
                                        scored_text(report.scores[1].report),
                                        report.gap().standard_error
                                            ? " The bar is one standard error of the gap to the original to either "
                                              "side: gaps closer than that may be chance."
                                            : "")
                          : "Without a text to score, only bytes are known.");
  html.open("div", {{"class", "charts"}});
  if (is_scored) add_chart(html, score_chart(report));
  if (is_searched) add_chart(html, search_chart(report));
  html.close().close();
}

}  // namespace

std::string QuantizeReport::precision() const {
  if (request.method != MethodKind::kSlope) return precisions_text(outcome.precisions);
  return fmt::format("{}, log2 of the step {:.4f}", trellis_name(request.slope.trellis_bits), outcome.log2_c);
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
               {"peak_memory_bytes", times.peak_memory_bytes()}};
  json.update(times.to_json());
  if (request.method == MethodKind::kSlope) {
    json["effort"] = level_of(request.effort).name;
    json["log2_c"] = outcome.log2_c;
  }
  if (!request.report.empty()) json["report"] = request.report;
  if (outcome.rate.total.weights > 0) json["rate"] = to_json(outcome.rate, !outcome.loss.empty());
  if (outcome.distill) json["distill"] = to_json(*outcome.distill);
  if (outcome.learning) json["learn"] = to_json(*outcome.learning);
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
  if (outcome.learning)
    add("learned", fmt::format("{:.2f}% of the codes: {}", 100 * outcome.learning->changed_codes,
                               divergence_text(*outcome.learning)));
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

std::string quantize_page(const QuantizeReport& report, const ReportRun& run) {
  const QuantizeRequest& request = report.request;
  const std::vector<ReportTensor> tensors =
      report_tensors(report.outcome.stored, reported_matrices(report.outcome.rate));
  HtmlWriter html;
  begin_page(html, "thimble quantize", request.checkpoint, request.checkpoint + " as " + request.output);
  add_headline(html, report);
  html.close();  // header
  add_charts(html, report);
  if (std::ranges::any_of(tensors, &ReportTensor::has_codes)) {
    begin_section(html, "Bits per weight over layers",
                  "A row for each layer, a column for each kind of matrix. Darker cells got more bits: there the model "
                  "would lose more.");
    add_bit_map(html, tensors, "bits");
    html.close();
  }
  begin_section(html, "Tensors",
                "Bars compare with the longest of each list. The loss is what quantizing was predicted to cost each "
                "matrix, from its Hessian; tensors that are stored as they were have none.");
  add_tensors(html, tensors);
  html.close();
  return end_page(html, run);
}

}  // namespace thimble
