// quantize_page.cpp: the page of quantize_report.h.
#include <fmt/format.h>

#include <algorithm>

#include "quantizer/reports/quantize_report.h"
#include "quantizer/reports/report_tensors.h"
#include "quantizer/reports/svg_chart.h"

namespace thimble {
namespace {

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
    figures.push_back(
        {"Bits per byte of text", bpb_text(scores[1].report.bits_per_byte()),
         fmt::format("{} beside the original's {}", gap_text(report.gap()), bpb_text(scores[0].report.bits_per_byte())),
         std::nullopt});
  figures.push_back({"Bits per parameter", fmt::format("{:.3f}", report.bits_per_parameter()),
                     fmt::format("{} parameters; {}", count_text(outcome.parameters), report.precision()),
                     std::nullopt});
  add_key_figures(html, figures);
  std::vector<std::string> notes = report.warnings();
  std::ranges::move(report.remarks(), std::back_inserter(notes));
  add_notes(html, notes);
}

Chart score_chart(const QuantizeReport& report) {
  const QuantizeOutcome& outcome = report.outcome;
  const double before = report.scores[0].report.bits_per_byte(), after = report.scores[1].report.bits_per_byte();
  const ByteUnit unit = byte_unit(outcome.original_bytes);
  auto point = [&](const std::string& name, uint64_t bytes, double bits_per_byte, std::optional<double> error) {
    return ChartPoint{static_cast<double>(bytes) / unit.bytes, bits_per_byte, error,
                      fmt::format("{}: {}, {} bits per byte", name, bytes_text(bytes), bpb_text(bits_per_byte)), false};
  };
  Chart chart;
  chart.id = "bpb";
  chart.title = "Bytes against bits per byte";
  chart.description = fmt::format("The artifact has {} and scores {} bits per byte, the original {} and {}.",
                                  bytes_text(outcome.artifact_bytes), bpb_text(after),
                                  bytes_text(outcome.original_bytes), bpb_text(before));
  chart.x_label = unit.name;
  chart.y_label = "bits per byte of text";
  chart.series = {{"artifact", {point("artifact", outcome.artifact_bytes, after, report.gap().standard_error)}},
                  {"original", {point("original", outcome.original_bytes, before, std::nullopt)}}};
  chart.horizontal = {{"the original's bits per byte", before}};
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
