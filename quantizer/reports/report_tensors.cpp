// report_tensors.cpp: see report_tensors.h.
#include "quantizer/reports/report_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "quantizer/reports/report_member.h"
#include "quantizer/reports/report_page.h"
#include "runtime/base/error.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

constexpr size_t kTopTensors = 12;  // tensors in each of the short lists
constexpr size_t kFewTensors = 24;  // so few are all shown at once
using Row = std::vector<ReportTable::Cell>;
using Tensors = std::vector<const ReportTensor*>;

double bytes_of(const ReportTensor& tensor) { return tensor.byte_share; }
double loss_of(const ReportTensor& tensor) { return tensor.loss_share.value_or(-1); }

// The largest share first.
Tensors sorted(const std::vector<ReportTensor>& tensors, double (*share)(const ReportTensor&)) {
  Tensors order;
  for (const ReportTensor& tensor : tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, [&](const auto* a, const auto* b) { return share(*a) > share(*b); });
  return order;
}

// The largest of those with such a share, and the rest in one line.
void add_largest(HtmlWriter& html, const std::string& caption, const std::string& heading,
                 const std::vector<ReportTensor>& tensors, double (*share)(const ReportTensor&)) {
  Tensors order = sorted(tensors, share);
  std::erase_if(order, [&](const ReportTensor* tensor) { return share(*tensor) < 0; });
  ReportTable table{caption, {"Tensor", "Bits per weight", heading}, 1, {}};
  double others = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const double part = share(*order[i]), most = share(*order[0]);
    if (i >= kTopTensors)
      others += part;
    else
      table.rows.push_back({{order[i]->name},
                            {fmt::format("{:.3f}", order[i]->bits_per_weight)},
                            {percent_text(part), most > 0 ? part / most : 0}});
  }
  if (order.size() > kTopTensors)
    table.rows.push_back({{counted(order.size() - kTopTensors, "other")}, {""}, {percent_text(others)}});
  html.open("div");
  add_table(html, table);
  html.close();
}

// Of all matrices of a kind, over the layers.
struct KindTotal {
  double bytes = 0, weights = 0, byte_share = 0, loss_share = 0;
};

void add_kinds(HtmlWriter& html, const std::vector<std::string>& kinds, const std::vector<KindTotal>& totals) {
  const double most_bytes = std::ranges::max(totals, {}, &KindTotal::byte_share).byte_share;
  const double most_loss = std::ranges::max(totals, {}, &KindTotal::loss_share).loss_share;
  ReportTable table{"By kind of matrix", {"Kind", "Bits per weight", "Share of the bytes"}, 1, {}};
  if (most_loss > 0) table.heading.emplace_back("Share of the loss");
  for (size_t i = 0; i < kinds.size(); ++i) {
    const KindTotal& total = totals[i];
    Row& row = table.rows.emplace_back(Row{{kinds[i]},
                                           {fmt::format("{:.3f}", 8 * total.bytes / total.weights)},
                                           {percent_text(total.byte_share), total.byte_share / most_bytes}});
    if (most_loss > 0) row.push_back({percent_text(total.loss_share), total.loss_share / most_loss});
  }
  add_table(html, table);
}

void add_all(HtmlWriter& html, const std::vector<ReportTensor>& tensors, bool has_losses) {
  ReportTable table{"All tensors, largest first",
                    {"Tensor", "Shape", "Precision", "Bytes", "Of all bytes", "Bits per weight"},
                    3,
                    {}};
  if (has_losses) table.heading.emplace_back("Of the loss");
  for (const ReportTensor* tensor : sorted(tensors, bytes_of)) {
    Row& row = table.rows.emplace_back(Row{{tensor->name},
                                           {shape_text(tensor->shape)},
                                           {tensor->precision},
                                           {count_text(std::llround(tensor->stored_bytes))},
                                           {percent_text(tensor->byte_share)},
                                           {fmt::format("{:.3f}", tensor->bits_per_weight)}});
    if (has_losses) row.push_back({tensor->loss_share ? percent_text(*tensor->loss_share) : ""});
  }
  add_table(html, table);
}

}  // namespace

ReportedMatrices reported_matrices(const ModelRate& rate) {
  ReportedMatrices reported;
  for (const auto& [name, matrix] : rate.matrices) reported[name].predicted_loss = matrix.predicted_loss;
  return reported;
}

ReportedMatrices read_quantize_report(Bytes text, const std::string& path, const ArtifactSummary& artifact) {
  const Json report = parse_json(text, path);
  const std::string whole = "the report (expected: what quantize --json prints)";
  check_report_of(report, artifact.file_bytes, path);
  std::set<std::string> names;
  for (const StoredTensorSummary& tensor : artifact.tensors) names.insert(tensor.name);
  ReportedMatrices found;
  const Json& rate = report_member(report, "rate", whole, path);
  for (const Json& matrix : report_member(rate, "matrices", "'rate'", path, &Json::is_array, "a list")) {
    const std::string name = report_member(matrix, "name", "a matrix of 'rate'", path, &Json::is_string, "a text");
    const std::string what = "matrix '" + name + "'";
    if (!names.contains(name)) throw FormatError(path, what + " is no tensor of this artifact");
    ReportedMatrix& reported = found[name];
    reported.predicted_loss = report_member(matrix, "predicted_loss", what, path, &Json::is_number, "a number");
    if (reported.predicted_loss < 0)
      throw FormatError(path,
                        fmt::format("'predicted_loss' of {} is {}, must be at least 0", what, reported.predicted_loss));
    if (matrix.contains("distance_bits_per_weight"))
      reported.distance_bits_per_weight =
          report_member(matrix, "distance_bits_per_weight", what, path, &Json::is_number, "a number").get<double>();
  }
  return found;
}

std::vector<ReportTensor> report_tensors(const ArtifactSummary& artifact, const ReportedMatrices& reported) {
  double loss = 0, bytes = 0;
  for (const auto& [name, matrix] : reported) loss += matrix.predicted_loss;
  for (const StoredTensorSummary& stored : artifact.tensors) bytes += stored.stored_bytes;
  std::vector<ReportTensor> tensors;
  for (const StoredTensorSummary& stored : artifact.tensors) {
    ReportTensor& tensor =
        tensors.emplace_back(ReportTensor{stored, {}, bytes > 0 ? stored.stored_bytes / bytes : 0, {}});
    const auto found = reported.find(stored.name);
    if (found == reported.end()) continue;
    tensor.reported = found->second;
    tensor.loss_share = loss > 0 ? found->second.predicted_loss / loss : 0;
  }
  return tensors;
}

HeatMap bits_map(const std::vector<ReportTensor>& tensors) {
  std::map<std::string, double> bits;
  for (const ReportTensor& tensor : tensors)
    if (tensor.has_codes()) bits[tensor.name] = tensor.bits_per_weight;
  return heat_map(bits);
}

HeatMap loss_map(const std::vector<ReportTensor>& tensors) {
  std::map<std::string, double> shares;
  for (const ReportTensor& tensor : tensors)
    if (tensor.loss_share) shares[tensor.name] = *tensor.loss_share;
  return heat_map(shares);
}

void add_bit_map(HtmlWriter& html, const std::vector<ReportTensor>& tensors, const std::string& id) {
  const HeatMap map = bits_map(tensors);
  if (map.empty()) return;
  std::vector<KindTotal> totals(map.kinds.size());
  for (const ReportTensor& tensor : tensors) {
    const auto row = map.row_of.find(tensor.name);
    if (row == map.row_of.end()) continue;
    KindTotal& total = totals[row->second];
    total.bytes += tensor.stored_bytes;
    total.weights += static_cast<double>(tensor.elements);
    total.byte_share += tensor.byte_share;
    total.loss_share += tensor.loss_share.value_or(0);
  }
  html.open("div", {{"class", "two"}});
  html.open("div", {{"class", "scroll"}, {"role", "group"}, {"aria-label", "Bits per weight"}, {"tabindex", "0"}});
  add_heat_map(html, map, "bits per weight", id);
  html.close().open("div", {{"class", "kinds"}});
  add_kinds(html, map.kinds, totals);
  html.close().close();
}

void add_tensors(HtmlWriter& html, const std::vector<ReportTensor>& tensors) {
  const bool has_losses =
      std::ranges::any_of(tensors, [](const auto& tensor) { return tensor.loss_share.has_value(); });
  html.open("div", {{"class", "two"}});
  add_largest(html, "Where the bytes are", "Share of the bytes", tensors, bytes_of);
  if (has_losses) add_largest(html, "Where the loss is", "Share of the loss", tensors, loss_of);
  html.close();
  html.open("details", {{"open", tensors.size() <= kFewTensors ? "open" : ""}});
  html.element("summary", {}, fmt::format("All {} tensors", tensors.size()));
  add_all(html, tensors, has_losses);
  html.close();
}

}  // namespace thimble
