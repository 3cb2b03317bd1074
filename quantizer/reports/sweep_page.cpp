// sweep_page.cpp: see sweep_page.h.
#include "quantizer/reports/sweep_page.h"

#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/byte_unit.h"
#include "quantizer/console/console.h"
#include "quantizer/console/progress_bar.h"
#include "quantizer/reports/quantize_page.h"
#include "quantizer/reports/svg_chart.h"
#include "quantizer/reports/sweep_curves.h"

namespace thimble {
namespace {

std::string bits_text(const SweepResults& results, uint64_t bytes) {
  return results.parameters > 0 ? fmt::format("{:.3f}", results.bits_per_weight(bytes)) : "";
}

std::string gap_of(const SweepPoint& point, const SweepResults& results) {
  if (!results.original) return "";
  return gap_text(point.bits_per_byte - results.original->bits_per_byte, point.gap_standard_error);
}

std::vector<const SweepPoint*> met_points(const SweepResults& results) {
  std::vector<const SweepPoint*> met;
  for (const SweepPoint& point : results.points)
    if (point.failure.empty()) met.push_back(&point);
  return met;
}

void add_headline(HtmlWriter& html, const SweepResults& results) {
  const std::vector<const SweepPoint*> met = met_points(results);
  std::vector<KeyFigure> figures;
  if (const auto& original = results.original)
    figures.push_back({"Original", bpb_text(original->bits_per_byte),
                       fmt::format("bits per byte, {}, {} parameters", bytes_text(original->file_bytes),
                                   count_text(results.parameters)),
                       std::nullopt});
  if (!met.empty()) {
    auto [smallest, largest] = std::ranges::minmax(met, {}, &SweepPoint::artifact_bytes);
    auto figure = [&](const std::string& name, const SweepPoint& point) {
      std::string value = bytes_text(point.artifact_bytes);
      std::string detail = point.method + ", " + bpb_text(point.bits_per_byte) + " bits per byte";
      if (results.original) detail += " (" + gap_of(point, results) + ")";
      return KeyFigure{name, value, detail, std::nullopt};
    };
    figures.push_back(figure("Smallest artifact", *smallest));
    if (largest != smallest) figures.push_back(figure("Largest artifact", *largest));
  }
  const size_t failed = results.points.size() - met.size();
  figures.push_back(
      {"Artifacts", count_text(static_cast<int64_t>(met.size())),
       failed == 0 ? "all budgets were met" : counted(failed, "budget was not met", "budgets were not met"),
       std::nullopt});
  add_key_figures(html, figures);
}

Chart curve_chart(const SweepResults& results) {
  const std::vector<SweepCurve> curves = sweep_curves(results);
  uint64_t most = 0;
  for (const SweepCurve& curve : curves)
    for (const SweepCurve::Point& point : curve.points) most = std::max(most, point.bytes);
  const ByteUnit unit = byte_unit(most);
  Chart chart;
  chart.id = "curve";
  chart.title = "Bytes against bits per byte";
  chart.x_label = std::string("artifact, ") + unit.name;
  chart.y_label = "bits per byte of text";
  for (const SweepCurve& curve : curves) {
    ChartSeries& series = chart.series.emplace_back(ChartSeries{curve.title, {}, true, curve.is_reference});
    for (const SweepCurve::Point& point : curve.points)
      series.points.push_back(
          {static_cast<double>(point.bytes) / unit.bytes, point.bits_per_byte, point.standard_error,
           fmt::format("{}: {}, {} bits per byte", curve.title, bytes_text(point.bytes), bpb_text(point.bits_per_byte)),
           false});
    chart.description += counted(curve.points.size(), "point") + " of " + curve.title + "; ";
  }
  if (results.original) {
    chart.horizontal = {{"original", results.original->bits_per_byte}};
    chart.description += "the original at " + bpb_text(results.original->bits_per_byte);
  }
  return chart;
}

void add_curve(HtmlWriter& html, const SweepResults& results) {
  const bool has_errors =
      std::ranges::any_of(results.points, [](const SweepPoint& point) { return point.gap_standard_error.has_value(); });
  begin_section(html, "Size and quality",
                "Each point is an artifact. Further left is smaller, further down is better; of two curves the lower "
                "one is." +
                    (results.original ? " Scored on " + results.original->scored + "." : "") +
                    (has_errors ? " Bars are one standard error of the gap to the original to either side: differences "
                                  "smaller than that may be chance."
                                : ""));
  add_chart(html, curve_chart(results));
  html.close();
}

using Row = std::vector<ReportTable::Cell>;

// One line of the table. Where a budget was not met there are no bytes.
Row point_row(const std::string& series, const SweepResults& results, uint64_t bytes, double bits_per_byte,
              const std::string& gap, const std::string& budget, const std::string& time) {
  return {{series}, {bytes_text(bytes)}, {bpb_text(bits_per_byte)}, {gap}, {bits_text(results, bytes)}, {budget},
          {time}};
}

Row point_row(const SweepPoint& point, const SweepResults& results) {
  const std::string budget = bytes_text(point.budget_bytes), time = duration_text(point.seconds);
  if (!point.failure.empty()) return {{point.method}, {"not met"}, {""}, {""}, {""}, {budget}, {time}};
  return point_row(point.method, results, point.artifact_bytes, point.bits_per_byte, gap_of(point, results), budget,
                   time);
}

void add_points(HtmlWriter& html, const SweepResults& results) {
  begin_section(html, "Points", "");
  ReportTable table{"Artifacts, references and the original",
                    {"Series", "Bytes", "Bits per byte", "Gap", "Bits per weight", "Budget", "Time"},
                    {false, true, true, true, true, true, true},
                    {}};
  auto add_other = [&](const std::string& name, uint64_t bytes, double bits_per_byte) {
    const std::string gap =
        results.original ? gap_text(bits_per_byte - results.original->bits_per_byte, std::nullopt) : "";
    table.rows.push_back(point_row(name, results, bytes, bits_per_byte, gap, "", ""));
  };
  if (results.original) add_other("original", results.original->file_bytes, results.original->bits_per_byte);
  for (const SweepPoint& point : results.points) table.rows.push_back(point_row(point, results));
  for (const ReferencePoint& reference : results.references)
    add_other(reference.label, reference.bytes, reference.bits_per_byte);
  add_table(html, table);
  std::vector<std::string> failures;
  for (const SweepPoint& point : results.points)
    if (!point.failure.empty())
      failures.push_back(point.method + " at " + bytes_text(point.budget_bytes) + ": " + point.failure);
  add_notes(html, failures);
  html.close();
}

// The first artifact of each method is shown, the others open.
void add_artifacts(HtmlWriter& html, const SweepPage& page) {
  begin_section(
      html, "Artifacts",
      "The map has a row for each layer and a column for each kind of matrix; darker cells got more bits. The "
      "loss is what quantizing was predicted to cost each matrix.");
  std::string open_method;
  int index = 0;
  for (const SweepPoint* point : met_points(page.results)) {
    html.open("details", {{"open", point->method != open_method ? "open" : ""}});
    open_method = point->method;
    html.element("summary", {},
                 fmt::format("{}, {}, {} bits per weight", point->method, bytes_text(point->artifact_bytes),
                             bits_text(page.results, point->artifact_bytes)));
    auto tensors = page.tensors.find({point->method, point->budget_bytes});
    if (tensors == page.tensors.end()) {
      html.element("p", {{"class", "how"}},
                   "An earlier run made this artifact and did not keep it: what it holds is not known.");
    } else {
      add_bit_map(html, tensors->second, "bits" + std::to_string(++index));
      add_tensors(html, tensors->second);
    }
    html.close();
  }
  html.close();
}

}  // namespace

std::string sweep_page(const SweepPage& page) {
  const SweepResults& results = page.results;
  HtmlWriter html;
  begin_page(html, "thimble sweep", last_name(results.checkpoint), results.checkpoint);
  add_headline(html, results);
  add_notes(html, page.notes);
  html.close();  // header
  add_curve(html, results);
  add_points(html, results);
  if (!met_points(results).empty()) add_artifacts(html, page);
  add_run(html, page.run);
  return end_page(html, page.run);
}

}  // namespace thimble
