// sweep_results.cpp: see sweep_results.h.
#include "quantizer/reports/sweep_results.h"

#include <fmt/format.h>

#include <algorithm>

#include "quantizer/console/console.h"
#include "quantizer/console/option_values.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

template <>
struct nlohmann::adl_serializer<std::optional<double>> {
  static void to_json(json& json, const std::optional<double>& value) {
    if (value)
      json = *value;
    else
      json = nullptr;
  }
  static void from_json(const json& json, std::optional<double>& value) {
    value.reset();
    if (!json.is_null()) value.emplace(json.get<double>());
  }
};

namespace thimble {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LossBlocks, loss_nats, text_bytes)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(OriginalScore, file_bytes, bits_per_byte, scored, blocks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(SweepPoint, method, budget_bytes, failure, fill_reason, artifact_bytes,
                                   artifact_hash, bits_per_byte, gap_standard_error, predicted_loss,
                                   distance_bits_per_weight, seconds)

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

template <typename Record>
std::optional<Record> record_from(const Json& record) {
  try {
    return record.get<Record>();
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= kMostLabelBytes && std::ranges::none_of(text, [](char c) {
    return c == '"' || c == '\x7f' || static_cast<unsigned char>(c) < ' ';
  });
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

Json record_of(const OriginalScore& original) { return original; }
Json record_of(const SweepPoint& point) { return point; }
std::optional<OriginalScore> original_from(const Json& record) { return record_from<OriginalScore>(record); }
std::optional<SweepPoint> point_from(const Json& record) { return record_from<SweepPoint>(record); }

}  // namespace thimble
