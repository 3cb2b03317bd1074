// quantize_page.cpp: see quantize_page.h.
#include "quantizer/reports/quantize_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/byte_unit.h"
#include "quantizer/console/console.h"
#include "quantizer/reports/svg_chart.h"

namespace thimble {
namespace {

double ratio(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

KeyFigure size_figure(const QuantizePage& page) {
  const double share = ratio(page.artifact_bytes, page.original_bytes);
  return {"Artifact", bytes_text(page.artifact_bytes),
          fmt::format("{} of the original's {}", percent_text(share), bytes_text(page.original_bytes)), share};
}

KeyFigure budget_figure(const QuantizePage& page, uint64_t budget) {
  const uint64_t total = page.artifact_bytes + page.code_bytes;
  const std::string code = page.code_bytes > 0 ? ", " + bytes_text(page.code_bytes) + " of it for code" : "";
  const std::string left =
      total <= budget ? bytes_text(budget - total) + " left" : bytes_text(total - budget) + " over";
  const double share = ratio(total, budget);
  return {"Budget", fill_text(share) + " used", fmt::format("{}{}; {}", bytes_text(budget), code, left), share};
}

KeyFigure score_figure(const ReportScores& scores) {
  return {"Bits per byte of text", bpb_text(scores.after),
          fmt::format("{} beside the original's {}", gap_text(scores.after - scores.before, scores.gap_standard_error),
                      bpb_text(scores.before)),
          std::nullopt};
}

void add_headline(HtmlWriter& html, const QuantizePage& page) {
  std::vector<KeyFigure> figures = {size_figure(page)};
  if (page.budget_bytes) figures.push_back(budget_figure(page, *page.budget_bytes));
  if (page.scores) figures.push_back(score_figure(*page.scores));
  figures.push_back({"Bits per parameter",
                     fmt::format("{:.3f}", page.parameters > 0 ? 8.0 * static_cast<double>(page.artifact_bytes) /
                                                                     static_cast<double>(page.parameters)
                                                               : 0),
                     fmt::format("{} parameters; {}", count_text(page.parameters), page.precision), std::nullopt});
  add_key_figures(html, figures);
  add_notes(html, page.notes);
}

Chart score_chart(const QuantizePage& page, const ReportScores& scores) {
  const ByteUnit unit = byte_unit(page.original_bytes);
  auto point = [&](const std::string& name, uint64_t bytes, double bits_per_byte, std::optional<double> error) {
    return ChartPoint{static_cast<double>(bytes) / unit.bytes, bits_per_byte, error,
                      fmt::format("{}: {}, {} bits per byte", name, bytes_text(bytes), bpb_text(bits_per_byte)), false};
  };
  Chart chart;
  chart.id = "bpb";
  chart.title = "Bytes against bits per byte";
  chart.description = fmt::format("The artifact has {} and scores {} bits per byte, the original {} and {}.",
                                  bytes_text(page.artifact_bytes), bpb_text(scores.after),
                                  bytes_text(page.original_bytes), bpb_text(scores.before));
  chart.x_label = unit.name;
  chart.y_label = "bits per byte of text";
  chart.series = {{"artifact", {point("artifact", page.artifact_bytes, scores.after, scores.gap_standard_error)}},
                  {"original", {point("original", page.original_bytes, scores.before, std::nullopt)}}};
  chart.horizontal = {{"the original's bits per byte", scores.before}};
  return chart;
}

Chart search_chart(const QuantizePage& page) {
  uint64_t most = page.artifact_bytes;
  for (const EncodedPoint& encoded : page.encoded) most = std::max(most, encoded.artifact_bytes);
  const ByteUnit unit = byte_unit(most);
  Chart chart;
  chart.id = "search";
  chart.title = "The search for the step";
  chart.description = fmt::format("{} artifacts were encoded on the way to {} at a step of 2 to the power of {:.4f}.",
                                  page.encoded.size(), bytes_text(page.artifact_bytes), page.log2_c);
  chart.x_label = "log2 of the step";
  chart.y_label = unit.name;
  ChartSeries tried{"tried on the way", {}, false}, found{"this artifact", {}, false};
  for (size_t i = 0; i < page.encoded.size(); ++i) {
    const EncodedPoint& encoded = page.encoded[i];
    tried.points.push_back(
        {encoded.log2_c, static_cast<double>(encoded.artifact_bytes) / unit.bytes, std::nullopt,
         fmt::format("{}: log2 of the step {:.4f}, {}", i + 1, encoded.log2_c, bytes_text(encoded.artifact_bytes)),
         false});
  }
  found.points.push_back(
      {page.log2_c, static_cast<double>(page.artifact_bytes) / unit.bytes, std::nullopt,
       fmt::format("this artifact: log2 of the step {:.4f}, {}", page.log2_c, bytes_text(page.artifact_bytes)), true});
  chart.series = {std::move(tried), std::move(found)};
  if (page.budget_bytes && *page.budget_bytes > page.code_bytes)
    chart.horizontal = {{"what the budget leaves for the artifact",
                         static_cast<double>(*page.budget_bytes - page.code_bytes) / unit.bytes}};
  return chart;
}

void add_charts(HtmlWriter& html, const QuantizePage& page) {
  if (!page.scores && page.encoded.empty()) return;
  begin_section(
      html, "Size and quality",
      page.scores ? fmt::format("Further left is smaller, further down is better. Scored on {}.{}", page.scores->scope,
                                page.scores->gap_standard_error
                                    ? " The bar is one standard error of the gap to the original to either "
                                      "side: gaps closer than that may be chance."
                                    : "")
                  : "Without a text to score, only bytes are known.");
  html.open("div", {{"class", "charts"}});
  if (page.scores) add_chart(html, score_chart(page, *page.scores));
  if (!page.encoded.empty()) add_chart(html, search_chart(page));
  html.close().close();
}

}  // namespace

std::string bpb_text(double bits_per_byte) { return fmt::format("{:.6f}", bits_per_byte); }

std::string gap_text(double gap, const std::optional<double>& standard_error) {
  std::string text = fmt::format("{:+.6f}", gap);
  if (standard_error) text += fmt::format(" ± {:.6f}", *standard_error);
  return text;
}

std::string last_name(const std::string& path) {
  const std::string name = path.substr(path.find_last_of('/') + 1);
  return name.empty() ? path : name;
}

std::string quantize_page(const QuantizePage& page) {
  HtmlWriter html;
  begin_page(html, "thimble quantize", last_name(page.checkpoint), page.checkpoint + " as " + page.artifact);
  add_headline(html, page);
  html.close();  // header
  add_charts(html, page);
  if (std::ranges::any_of(page.tensors, &ReportTensor::is_coded)) {
    begin_section(html, "Bits per weight over layers",
                  "A row for each layer, a column for each kind of matrix. Darker cells got more bits: there the model "
                  "would lose more.");
    add_bit_map(html, page.tensors, "bits");
    html.close();
  }
  begin_section(html, "Tensors",
                "Bars compare with the longest of each list. The loss is what quantizing was predicted to cost each "
                "matrix, from its Hessian; tensors that are stored as they were have none.");
  add_tensors(html, page.tensors);
  html.close();
  add_run(html, page.run);
  return end_page(html, page.run);
}

}  // namespace thimble
