// sweep_page.cpp: chart and page of sweep_results.h.
#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/progress_bar.h"
#include "quantizer/reports/sweep_results.h"

namespace thimble {
namespace {

std::string bits_text(const SweepResults& results, uint64_t bytes) {
  return results.parameters > 0 ? fmt::format("{:.3f}", results.bits_per_weight(bytes)) : "";
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
      if (results.original) detail += " (" + gap_text(results.gap_of(point)) + ")";
      return KeyFigure{name, value, detail, std::nullopt};
    };
    figures.push_back(figure("Smallest artifact", *smallest));
    if (largest != smallest) figures.push_back(figure("Largest artifact", *largest));
  }
  const size_t failed = results.points.size() - met.size();
  figures.push_back(
      {"Artifacts", count_text(met.size()),
       failed == 0 ? "all budgets were met" : counted(failed, "budget was not met", "budgets were not met"),
       std::nullopt});
  add_key_figures(html, figures);
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
  add_chart(html, sweep_chart(results));
  html.close();
}

void add_points(HtmlWriter& html, const SweepResults& results) {
  begin_section(html, "Points", "");
  ReportTable table{"Artifacts, references and the original",
                    {"Series", "Bytes", "Bits per byte", "Gap", "Bits per weight", "Budget", "Time"},
                    1,
                    {}};
  for (const SweepLine& line : lines_of(results)) {
    const std::string budget = line.budget ? bytes_text(*line.budget) : "";
    const std::string time = line.seconds ? duration_text(*line.seconds) : "";
    if (line.bytes)
      table.rows.push_back({{line.series},
                            {bytes_text(*line.bytes)},
                            {bpb_text(line.bits_per_byte)},
                            {line.gap ? gap_text(*line.gap) : ""},
                            {bits_text(results, *line.bytes)},
                            {budget},
                            {time}});
    else
      table.rows.push_back({{line.series}, {"not met"}, {""}, {""}, {""}, {budget}, {time}});
  }
  add_table(html, table);
  std::vector<std::string> failures;
  for (const SweepPoint& point : results.points)
    if (!point.failure.empty())
      failures.push_back(point.method + " at " + bytes_text(point.budget_bytes) + ": " + point.failure);
  add_notes(html, failures);
  html.close();
}

// The first artifact of each method is shown, the others open.
void add_artifacts(HtmlWriter& html, const SweepResults& results, const SweepTensors& known) {
  begin_section(
      html, "Artifacts",
      "The map has a row for each layer and a column for each kind of matrix; darker cells got more bits. The "
      "loss is what quantizing was predicted to cost each matrix.");
  std::string open_method;
  int index = 0;
  for (const SweepPoint* point : met_points(results)) {
    html.open("details", {{"open", point->method != open_method ? "open" : ""}});
    open_method = point->method;
    html.element("summary", {},
                 fmt::format("{}, {}, {} bits per weight", point->method, bytes_text(point->artifact_bytes),
                             bits_text(results, point->artifact_bytes)));
    auto tensors = known.find({point->method, point->budget_bytes});
    if (tensors == known.end()) {
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

Chart sweep_chart(const SweepResults& results) {
  Chart chart;
  chart.id = "curve";
  chart.title = "Bytes against bits per byte";
  chart.y_label = "bits per byte of text";
  uint64_t most = 0;
  auto add = [&](const std::string& name, bool is_reference, uint64_t bytes, double bits_per_byte,
                 const std::optional<double>& error) {
    auto series = std::ranges::find_if(
        chart.series, [&](const ChartSeries& one) { return one.name == name && one.is_reference == is_reference; });
    if (series == chart.series.end()) series = chart.series.insert(series, {name, {}, true, is_reference});
    most = std::max(most, bytes);
    series->points.push_back({static_cast<double>(bytes), bits_per_byte, error,
                              fmt::format("{}: {}, {} bits per byte", name, bytes_text(bytes), bpb_text(bits_per_byte)),
                              false});
  };
  for (const SweepPoint* point : met_points(results))
    add(point->method, false, point->artifact_bytes, point->bits_per_byte, point->gap_standard_error);
  for (const ReferencePoint& reference : results.references)
    add(reference.label, true, reference.bytes, reference.bits_per_byte, std::nullopt);
  const ByteUnit unit = byte_unit(most);
  chart.x_label = std::string("artifact, ") + unit.name;
  for (ChartSeries& series : chart.series) {
    for (ChartPoint& point : series.points) point.x /= unit.bytes;
    std::ranges::sort(series.points, {}, [](const ChartPoint& point) { return std::pair(point.x, point.y); });
    chart.description += counted(series.points.size(), "point") + " of " + series.name + "; ";
  }
  if (results.original) {
    chart.horizontal = {{"original", results.original->bits_per_byte}};
    chart.description += "the original at " + bpb_text(results.original->bits_per_byte);
  }
  return chart;
}

std::string sweep_page(const SweepResults& results, const SweepTensors& tensors, const ReportRun& run) {
  HtmlWriter html;
  begin_page(html, "thimble sweep", results.checkpoint, results.checkpoint);
  add_headline(html, results);
  std::vector<std::string> notes;
  for (const auto& note : results.notes)
    if (note) notes.push_back(*note);
  add_notes(html, notes);
  html.close();  // header
  add_curve(html, results);
  add_points(html, results);
  if (!met_points(results).empty()) add_artifacts(html, results, tensors);
  return end_page(html, run);
}

}  // namespace thimble
