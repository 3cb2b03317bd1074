// inspect_report.cpp: see inspect_report.h.
#include "quantizer/reports/inspect_report.h"

#include <fmt/format.h>

#include <set>

#include "quantizer/console/json_fields.h"
#include "runtime/base/error.h"

namespace thimble {
std::map<std::string, ReportedMatrix> read_quantize_report(Bytes text, const std::string& path,
                                                           const ArtifactSummary& artifact) {
  const Json report = parse_json(text, path);
  const std::string whole = "the report (expected: what quantize --json prints)";
  const uint64_t bytes = json_count(report, "artifact_bytes", whole, path);
  if (bytes != artifact.file_bytes)
    throw FormatError(
        path, fmt::format("is the report of an artifact of {} B, this one has {} B", bytes, artifact.file_bytes));
  std::set<std::string> names;
  for (const StoredTensorSummary& tensor : artifact.tensors) names.insert(tensor.name);
  std::map<std::string, ReportedMatrix> found;
  for (const Json& matrix : json_list(json_member(report, "rate", whole, path), "matrices", "'rate'", path)) {
    const std::string name = json_text(matrix, "name", "a matrix of 'rate'", path), what = "matrix '" + name + "'";
    if (!names.contains(name)) throw FormatError(path, what + " is no tensor of this artifact");
    ReportedMatrix& reported = found[name];
    reported.predicted_loss = json_number(matrix, "predicted_loss", what, path);
    if (reported.predicted_loss < 0)
      throw FormatError(path,
                        fmt::format("'predicted_loss' of {} is {}, must be at least 0", what, reported.predicted_loss));
    if (matrix.contains("distance_bits_per_weight"))
      reported.distance_bits_per_weight = json_number(matrix, "distance_bits_per_weight", what, path);
  }
  return found;
}

}  // namespace thimble
