// sweep_results.cpp: see sweep_results.h.
#include "quantizer/reports/sweep_results.h"

#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/option_values.h"
#include "quantizer/console/progress_bar.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {

namespace {

constexpr const char* kKind = "thimble sweep";
constexpr const char* kReferenceHeading = "label,bytes,bpb";
constexpr size_t kMostLabelBytes = 64;

// Share of the budget.
double fill_of(const SweepPoint& point) {
  return static_cast<double>(point.artifact_bytes) / static_cast<double>(point.budget_bytes);
}

Json to_json(const SweepPoint& point, const SweepResults& results) {
  Json json = {{"method", point.method}, {"budget_bytes", point.budget_bytes}, {"seconds", point.seconds}};
  if (!point.failure.empty()) {
    json["failure"] = point.failure;
    return json;
  }
  json["artifact_bytes"] = point.artifact_bytes;
  json["fill"] = fill_of(point);
  if (!point.fill_reason.empty()) json["fill_reason"] = point.fill_reason;
  json["bits_per_weight"] = results.bits_per_weight(point.artifact_bytes);
  json["bits_per_byte"] = point.bits_per_byte;
  if (results.original) json.update(to_json(results.gap_of(point)));
  if (point.predicted_loss) json["predicted_loss"] = *point.predicted_loss;
  if (point.distance_bits_per_weight) json["distance_bits_per_weight"] = *point.distance_bits_per_weight;
  return json;
}

std::string progress_of(const SweepResults& results) {
  return fmt::format("{} of {} done", results.points.size(), counted(results.planned_points, "point"));
}

// A text as one field of a CSV file.
std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) {
    quoted += c;
    if (c == '"') quoted += c;
  }
  return quoted + "\"";
}

std::string csv_line(const SweepLine& line, const SweepResults& results) {
  std::string text = line.series + "," + (line.budget ? std::to_string(*line.budget) : "") + ",";
  if (line.bytes)
    text += fmt::format("{},{:.6f},{:.6f},", *line.bytes, results.bits_per_weight(*line.bytes), line.bits_per_byte);
  else
    text += ",,,";
  if (line.gap) text += fmt::format("{:.6f}", line.gap->bits_per_byte);
  text += ",";
  if (line.gap && line.gap->standard_error) text += standard_error_text(line.gap->standard_error);
  return text + "," + csv_field(line.note) + "\n";
}

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= kMostLabelBytes && std::ranges::none_of(text, [](char c) {
    return c == '"' || c == '\x7f' || static_cast<unsigned char>(c) < ' ';
  });
}

// The page.

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
                                   count_text(results.parameters))});
  if (!met.empty()) {
    auto [smallest, largest] = std::ranges::minmax(met, {}, &SweepPoint::artifact_bytes);
    auto figure = [&](const std::string& name, const SweepPoint& point) {
      std::string value = bytes_text(point.artifact_bytes);
      std::string detail = point.method + ", " + bpb_text(point.bits_per_byte) + " bits per byte";
      if (results.original) detail += " (" + gap_text(results.gap_of(point)) + ")";
      return KeyFigure{name, value, detail};
    };
    figures.push_back(figure("Smallest artifact", *smallest));
    if (largest != smallest) figures.push_back(figure("Largest artifact", *largest));
  }
  const size_t failed = results.points.size() - met.size();
  figures.push_back(
      {"Artifacts", count_text(met.size()),
       failed == 0 ? "all budgets were met" : counted(failed, "budget was not met", "budgets were not met")});
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
    const bool is_met = line.bytes.has_value();
    table.rows.push_back({{line.series},
                          {is_met ? bytes_text(*line.bytes) : "not met"},
                          {is_met ? bpb_text(line.bits_per_byte) : ""},
                          {line.gap ? gap_text(*line.gap) : ""},
                          {is_met ? bits_text(results, *line.bytes) : ""},
                          {line.budget ? bytes_text(*line.budget) : ""},
                          {line.seconds ? duration_text(*line.seconds) : ""}});
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
void add_artifacts(HtmlWriter& html, const SweepResults& results) {
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
    if (point->tensors.empty()) {
      html.element("p", {{"class", "how"}},
                   "An earlier run made this artifact and did not keep it: what it holds is not known.");
    } else {
      add_bit_map(html, point->tensors, "bits" + std::to_string(++index));
      add_tensors(html, point->tensors);
    }
    html.close();
  }
  html.close();
}

}  // namespace

std::vector<SweepLine> lines_of(const SweepResults& results) {
  std::vector<SweepLine> lines;
  const auto& original = results.original;
  if (original)
    lines.push_back({.series = "original",
                     .bytes = original->file_bytes,
                     .bits_per_byte = original->bits_per_byte,
                     .gap = BpbGap{0, paired_standard_error(original->blocks, original->blocks)}});
  for (const SweepPoint& point : results.points) {
    SweepLine& line = lines.emplace_back(SweepLine{.series = point.method,
                                                   .budget = point.budget_bytes,
                                                   .bits_per_byte = point.bits_per_byte,
                                                   .note = point.failure + point.fill_reason,
                                                   .seconds = point.seconds});
    if (!point.failure.empty()) continue;
    line.bytes = point.artifact_bytes;
    if (original) line.gap = results.gap_of(point);
  }
  for (const ReferencePoint& reference : results.references) {
    SweepLine& line = lines.emplace_back(
        SweepLine{.series = reference.label, .bytes = reference.bytes, .bits_per_byte = reference.bits_per_byte});
    if (original) line.gap = BpbGap{reference.bits_per_byte - original->bits_per_byte, {}};
  }
  return lines;
}

Json to_json(const SweepResults& results) {
  Json points = Json::array(), references = Json::array();
  for (const SweepPoint& point : results.points) points.push_back(to_json(point, results));
  for (const ReferencePoint& reference : results.references)
    references.push_back(
        {{"label", reference.label}, {"bytes", reference.bytes}, {"bits_per_byte", reference.bits_per_byte}});
  Json json = {{"kind", kKind},
               {"checkpoint", results.checkpoint},
               {"parameters", results.parameters},
               {"complete", results.is_complete},
               {"planned_points", results.planned_points},
               {"points", points},
               {"references", references},
               {"notes", notes_json(results.notes)}};
  if (const auto& original = results.original)
    json["original"] = {
        {"file_bytes", original->file_bytes}, {"bits_per_byte", original->bits_per_byte}, {"scored", original->scored}};
  return json;
}

std::string to_csv(const SweepResults& results) {
  std::string text = std::string(kSweepCsvHeading) + "\n";
  for (const SweepLine& line : lines_of(results)) text += csv_line(line, results);
  if (!results.is_complete) text += csv_line({.series = "incomplete", .note = progress_of(results)}, results);
  return text;
}

std::string to_text(const SweepResults& results) {
  std::vector<std::vector<std::string>> rows = {{"series", "bytes", "bits/weight", "BPB", "gap", "+-"}};
  for (const SweepLine& line : lines_of(results)) {
    if (!line.bytes) {
      rows.push_back(
          {line.series, "-", "-", "-", "-", "-", fmt::format("at {}: {}", bytes_text(*line.budget), line.note)});
      continue;
    }
    rows.push_back({line.series, bytes_text(*line.bytes), fmt::format("{:.3f}", results.bits_per_weight(*line.bytes)),
                    fmt::format("{:.6f}", line.bits_per_byte)});
    if (line.gap) {
      rows.back().push_back(fmt::format("{:+.6f}", line.gap->bits_per_byte));
      rows.back().push_back(standard_error_text(line.gap->standard_error));
    }
  }
  std::string text = table_text(rows);
  for (const SweepPoint& point : results.points)
    if (!point.fill_reason.empty())
      text += fmt::format("{} at {}: {} used; {}\n", point.method, bytes_text(point.budget_bytes),
                          fill_text(fill_of(point)), point.fill_reason);
  if (results.original) text += results.original->scored + "\n";
  if (!results.is_complete) text += "incomplete: " + progress_of(results) + "\n";
  return text + notes_text(results.notes);
}

std::vector<ReferencePoint> parse_reference_points(Bytes text, const std::string& path) {
  std::vector<ReferencePoint> points;
  std::string_view rest = as_text(text);
  for (int number = 1; !rest.empty(); ++number) {
    const size_t end = rest.find('\n');
    std::string_view line = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || (number == 1 && line == kReferenceHeading)) continue;
    const size_t first = line.find(','), second = first == std::string_view::npos ? first : line.find(',', first + 1);
    std::optional<uint64_t> bytes;
    std::optional<double> bits_per_byte;
    if (second != std::string_view::npos) {
      bytes = parse_whole_number(line.substr(first + 1, second - first - 1));
      bits_per_byte = parse_finite(line.substr(second + 1));
    }
    if (!is_label(line.substr(0, first)) || bytes.value_or(0) == 0 || !bits_per_byte)
      throw FormatError(path, fmt::format("line {} is not {}: a label of 1 to {} bytes without commas and quotes, "
                                          "an integer above 0 and a number",
                                          number, kReferenceHeading, kMostLabelBytes));
    points.push_back({std::string(line.substr(0, first)), *bytes, *bits_per_byte});
  }
  return points;
}

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

std::string sweep_page(const SweepResults& results, const ReportRun& run) {
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
  if (!met_points(results).empty()) add_artifacts(html, results);
  return end_page(html, run);
}

}  // namespace thimble
