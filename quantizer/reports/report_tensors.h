// report_tensors.h: the tensors of an artifact with what quantizing each was predicted to cost: for `inspect`, and the
// map and the tables of pages.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "packer/artifact.h"
#include "quantizer/pipeline/model_rate.h"
#include "quantizer/reports/heat_map.h"
#include "quantizer/reports/html_writer.h"
#include "runtime/base/byte_cursor.h"

namespace thimble {

struct ReportedMatrix {
  double predicted_loss = 0;                       // >= 0
  std::optional<double> distance_bits_per_weight;  // from the rate-distortion bound, with --rate-bound
};
using ReportedMatrices = std::map<std::string, ReportedMatrix>;  // by tensor name

ReportedMatrices reported_matrices(const ModelRate& rate);

// From what `quantize --json` printed. Anything that is not the report of this artifact (of its size, with its
// tensors), with losses, is a FormatError(path).
ReportedMatrices read_quantize_report(Bytes text, const std::string& path, const ArtifactSummary& artifact);

struct ReportTensor : StoredTensorSummary {
  std::optional<ReportedMatrix> reported;
  double byte_share = 0;             // of the bytes of all
  std::optional<double> loss_share;  // of the loss that was predicted for all

  bool has_codes() const { return coded && elements > 0; }
};

// All tensors of the artifact, in its order.
std::vector<ReportTensor> report_tensors(const ArtifactSummary& artifact, const ReportedMatrices& reported);

// Of the matrices with codes, and of those with a known loss.
HeatMap bits_map(const std::vector<ReportTensor>& tensors);
HeatMap loss_map(const std::vector<ReportTensor>& tensors);

// The map of bits per weight, when there is one, and the tensors: the largest, the lossiest, and all.
void add_bit_map(HtmlWriter& html, const std::vector<ReportTensor>& tensors, const std::string& id);
void add_tensors(HtmlWriter& html, const std::vector<ReportTensor>& tensors);

}  // namespace thimble
