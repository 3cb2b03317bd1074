// sweep_results.cpp: see sweep_results.h.
#include "quantizer/sweep_results.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "quantizer/console.h"
#include "quantizer/json_fields.h"
#include "runtime/error.h"

namespace thimble {
namespace {

constexpr const char* kKind = "thimble sweep";
constexpr const char* kReferenceHeading = "label,bytes,bpb";
constexpr size_t kMostLabelBytes = 64;

Json to_json(const SweepPoint& point, const SweepResults& results) {
  Json json = {{"method", point.method}, {"budget_bytes", point.budget_bytes}, {"seconds", point.seconds}};
  if (!point.failure.empty()) {
    json["failure"] = point.failure;
    return json;
  }
  json["artifact_bytes"] = point.artifact_bytes;
  json["bits_per_weight"] = results.bits_per_weight(point.artifact_bytes);
  json["bits_per_byte"] = point.bits_per_byte;
  if (results.original) json["gap_bits_per_byte"] = point.bits_per_byte - results.original->bits_per_byte;
  if (point.predicted_loss) json["predicted_loss"] = *point.predicted_loss;
  if (point.distance_bits_per_weight) json["distance_bits_per_weight"] = *point.distance_bits_per_weight;
  return json;
}

SweepPoint point_from(const Json& json, const std::string& path) {
  const std::string what = "a point";
  SweepPoint point;
  point.method = json_text(json, "method", what, path);
  point.budget_bytes = json_count(json, "budget_bytes", what, path);
  point.seconds = json_number(json, "seconds", what, path);
  if (json.contains("failure")) {
    point.failure = json_text(json, "failure", what, path);
    return point;
  }
  point.artifact_bytes = json_count(json, "artifact_bytes", what, path);
  point.bits_per_byte = json_number(json, "bits_per_byte", what, path);
  auto optional_number = [&](const char* key) {
    return json.contains(key) ? std::optional(json_number(json, key, what, path)) : std::nullopt;
  };
  point.predicted_loss = optional_number("predicted_loss");
  point.distance_bits_per_weight = optional_number("distance_bits_per_weight");
  return point;
}

// Whatever one line of the table or the CSV says, as text; "" where it says nothing.
struct Line {
  std::string series, budget;
  uint64_t bytes = 0;
  double bits_per_byte = 0;
};

std::vector<Line> lines_of(const SweepResults& results) {
  std::vector<Line> lines;
  if (const auto& original = results.original)
    lines.push_back({"original", "", original->file_bytes, original->bits_per_byte});
  for (const SweepPoint& point : results.points)
    if (point.failure.empty())
      lines.push_back({point.method, std::to_string(point.budget_bytes), point.artifact_bytes, point.bits_per_byte});
  for (const ReferencePoint& reference : results.references)
    lines.push_back({reference.label, "", reference.bytes, reference.bits_per_byte});
  return lines;
}

template <typename T>
bool parse_number(std::string_view text, T& value) {
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

bool is_label(std::string_view text) {
  return !text.empty() && text.size() <= kMostLabelBytes && std::ranges::none_of(text, [](char c) {
    return c == '"' || c == '\x7f' || static_cast<unsigned char>(c) < ' ';
  });
}

}  // namespace

const SweepPoint* SweepResults::find(const std::string& method, uint64_t budget_bytes) const {
  auto found = std::ranges::find_if(
      points, [&](const SweepPoint& point) { return point.method == method && point.budget_bytes == budget_bytes; });
  return found == points.end() ? nullptr : &*found;
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
               {"keys", results.keys},
               {"points", points},
               {"references", references}};
  if (const auto& original = results.original)
    json["original"] = {
        {"file_bytes", original->file_bytes}, {"bits_per_byte", original->bits_per_byte}, {"scored", original->scored}};
  return json;
}

SweepResults parse_sweep_results(Bytes text, const std::string& path) {
  const Json json = parse_json(text, path);
  if (!json.is_object() || json.value("kind", Json()) != kKind)
    throw FormatError(path, "does not hold the results of a sweep, which would replace it");
  const std::string what = "the sweep";
  SweepResults results;
  results.checkpoint = json_text(json, "checkpoint", what, path);
  results.parameters = static_cast<int64_t>(json_count(json, "parameters", what, path));
  const Json& keys = json_member(json, "keys", what, path);
  for (const auto& item : keys.items()) results.keys[item.key()] = json_text(keys, item.key(), "'keys'", path);
  if (json.contains("original")) {
    const Json& original = json.at("original");
    results.original = {json_count(original, "file_bytes", "'original'", path),
                        json_number(original, "bits_per_byte", "'original'", path),
                        json_text(original, "scored", "'original'", path)};
  }
  for (const Json& point : json_list(json, "points", what, path)) results.points.push_back(point_from(point, path));
  return results;
}

std::string to_csv(const SweepResults& results) {
  std::string text = "series,budget_bytes,artifact_bytes,bits_per_weight,bits_per_byte,gap_bits_per_byte\n";
  for (const Line& line : lines_of(results)) {
    text += fmt::format("{},{},{},{:.6f},{:.6f},", line.series, line.budget, line.bytes,
                        results.bits_per_weight(line.bytes), line.bits_per_byte);
    if (results.original) text += fmt::format("{:.6f}", line.bits_per_byte - results.original->bits_per_byte);
    text += "\n";
  }
  return text;
}

std::string to_text(const SweepResults& results) {
  std::vector<std::vector<std::string>> rows = {{"series", "bytes", "bits/weight", "BPB", "gap"}};
  for (const Line& line : lines_of(results)) {
    rows.push_back({line.series, bytes_text(line.bytes), fmt::format("{:.3f}", results.bits_per_weight(line.bytes)),
                    fmt::format("{:.6f}", line.bits_per_byte)});
    if (results.original)
      rows.back().push_back(fmt::format("{:+.6f}", line.bits_per_byte - results.original->bits_per_byte));
  }
  std::string text = table_text(rows);
  if (results.original) text += results.original->scored + "\n";
  for (const SweepPoint& point : results.points)
    if (!point.failure.empty())
      text += fmt::format("{} at {}: {}\n", point.method, bytes_text(point.budget_bytes), point.failure);
  return text;
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
    ReferencePoint point;
    if (second == std::string_view::npos || !is_label(line.substr(0, first)) ||
        !parse_number(line.substr(first + 1, second - first - 1), point.bytes) ||
        !parse_number(line.substr(second + 1), point.bits_per_byte) || point.bytes == 0 ||
        !std::isfinite(point.bits_per_byte))
      throw FormatError(path, fmt::format("line {} is not {}: a label of 1 to {} bytes without commas and quotes, "
                                          "an integer above 0 and a number",
                                          number, kReferenceHeading, kMostLabelBytes));
    point.label = line.substr(0, first);
    points.push_back(std::move(point));
  }
  return points;
}

}  // namespace thimble
