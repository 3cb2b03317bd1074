// inspect_report.cpp: see inspect_report.h.
#include "quantizer/inspect_report.h"

#include <fmt/format.h>

#include <cmath>
#include <set>

#include "runtime/json.h"

namespace thimble {
namespace {

// A member of an object, or a FormatError that names it.
const Json& member(const Json& object, const char* key, const std::string& what, const std::string& path) {
  if (!object.is_object() || !object.contains(key))
    throw FormatError(path, fmt::format("{} has no '{}'; expected the output of quantize --json", what, key));
  return object.at(key);
}

double number(const Json& value, const std::string& what, const std::string& path) {
  if (!value.is_number() || !std::isfinite(value.get<double>()))
    throw FormatError(path, fmt::format("{} is {}, must be a number", what, value.dump().substr(0, 40)));
  return value.get<double>();
}

}  // namespace

std::map<std::string, ReportedMatrix> read_quantize_report(Bytes text, const std::string& path,
                                                           const ArtifactSummary& artifact) {
  const Json report = parse_json(text, path);
  const Json& bytes = member(report, "artifact_bytes", "the report", path);
  if (bytes != artifact.file_bytes)
    throw FormatError(path, fmt::format("is the report of an artifact of {} B, this one has {} B",
                                        bytes.dump().substr(0, 40), artifact.file_bytes));
  const Json& rates = member(report, "rate", "the report", path);
  const Json& matrices = member(rates, "matrices", "'rate'", path);
  if (!matrices.is_array()) throw FormatError(path, "'matrices' of 'rate' is not a list");
  std::set<std::string> names;
  for (const StoredTensorSummary& tensor : artifact.tensors) names.insert(tensor.name);
  std::map<std::string, ReportedMatrix> found;
  for (const Json& matrix : matrices) {
    const Json& name = member(matrix, "name", "a matrix of 'rate'", path);
    if (!name.is_string() || !names.contains(name.get<std::string>()))
      throw FormatError(path, "matrix " + name.dump().substr(0, 200) + " is no tensor of this artifact");
    const std::string what = "matrix " + name.dump();
    ReportedMatrix& reported = found[name.get<std::string>()];
    reported.predicted_loss =
        number(member(matrix, "predicted_loss", what, path), "the predicted loss of " + what, path);
    if (reported.predicted_loss < 0)
      throw FormatError(
          path, fmt::format("the predicted loss of {} is {}, must be at least 0", what, reported.predicted_loss));
    if (matrix.contains("distance_bits_per_weight"))
      reported.distance_bits_per_weight =
          number(matrix.at("distance_bits_per_weight"), "the distance of " + what, path);
  }
  return found;
}

}  // namespace thimble
