// inspect_report.h: what the JSON report of `quantize --json` knows about an artifact that the artifact itself does
// not: the loss that was predicted for each matrix, and its distance from the rate-distortion bound.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "packer/describe_artifact.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

struct ReportedMatrix {
  double predicted_loss = 0;                       // >= 0
  std::optional<double> distance_bits_per_weight;  // from the bound, with --rate-bound
};

// By tensor name. Anything that is not the report of this artifact (of its size, with its tensors), with losses, is a
// FormatError(path).
std::map<std::string, ReportedMatrix> read_quantize_report(Bytes text, const std::string& path,
                                                           const ArtifactSummary& artifact);

}  // namespace thimble
