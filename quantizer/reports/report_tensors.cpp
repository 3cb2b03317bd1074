// report_tensors.cpp: the map and the tables of tensors of report_page.h.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "quantizer/console/console.h"
#include "quantizer/reports/heat_map_svg.h"
#include "quantizer/reports/report_page.h"

namespace thimble {
namespace {

constexpr size_t kTop = 12;         // tensors in each of the short lists
constexpr size_t kFewTensors = 24;  // so few are all shown at once
using Row = std::vector<ReportTable::Cell>;
using Tensors = std::vector<const ReportTensor*>;

std::string whole_bytes(double bytes) { return count_text(static_cast<int64_t>(std::llround(bytes))); }

Tensors sorted(const std::vector<ReportTensor>& tensors, const std::function<double(const ReportTensor&)>& by) {
  Tensors order;
  for (const ReportTensor& tensor : tensors) order.push_back(&tensor);
  std::ranges::stable_sort(order, [&](const auto* a, const auto* b) { return by(*a) > by(*b); });
  return order;
}

double share_or_none(const ReportTensor& tensor) { return tensor.loss_share.value_or(-1); }

double total_bytes(const std::vector<ReportTensor>& tensors) {
  double total = 0;
  for (const ReportTensor& tensor : tensors) total += tensor.bytes;
  return total;
}

// The first of them, and the rest in one line. `part` is a tensor's share of all, by which they are sorted.
void add_largest(HtmlWriter& html, const std::string& caption, const std::string& heading, const Tensors& order,
                 const std::function<double(const ReportTensor&)>& part) {
  ReportTable table{caption, {"Tensor", "Bits per weight", heading}, {false, true, true}, {}};
  const double most = order.empty() ? 0 : part(*order[0]);
  double others = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    const ReportTensor& tensor = *order[i];
    if (i >= kTop)
      others += part(tensor);
    else
      table.rows.push_back({{tensor.name},
                            {fmt::format("{:.3f}", tensor.bits_per_weight)},
                            {percent_text(part(tensor)), most > 0 ? part(tensor) / most : 0}});
  }
  if (order.size() > kTop)
    table.rows.push_back({{fmt::format("{} other{}", order.size() - kTop, order.size() - kTop == 1 ? "" : "s")},
                          {""},
                          {percent_text(others)}});
  html.open("div");
  add_table(html, table);
  html.close();
}

// By kind of matrix, over all layers.
std::vector<double> sums(const HeatMap& map) {
  std::vector<double> sums;
  for (const auto& row : map.values) {
    double& sum = sums.emplace_back(0);
    for (const std::optional<double>& value : row) sum += value.value_or(0);
  }
  return sums;
}

void add_kinds(HtmlWriter& html, const std::vector<std::string>& kinds, const std::vector<double>& bytes,
               const std::vector<double>& weights, const std::vector<double>& losses, double all_bytes) {
  const double most_bytes = std::ranges::max(bytes), most_loss = std::ranges::max(losses);
  ReportTable table{"By kind of matrix", {"Kind", "Bits per weight", "Share of the bytes"}, {false, true, true}, {}};
  if (most_loss > 0) {
    table.heading.emplace_back("Share of the loss");
    table.is_number.push_back(true);
  }
  for (size_t i = 0; i < kinds.size(); ++i) {
    Row& row = table.rows.emplace_back(Row{{kinds[i]},
                                           {fmt::format("{:.3f}", 8 * bytes[i] / weights[i])},
                                           {percent_text(bytes[i] / all_bytes), bytes[i] / most_bytes}});
    if (most_loss > 0) row.push_back({percent_text(losses[i]), losses[i] / most_loss});
  }
  add_table(html, table);
}

void add_all(HtmlWriter& html, const Tensors& order, double bytes, bool has_losses) {
  ReportTable table{"All tensors, largest first",
                    {"Tensor", "Shape", "Precision", "Bytes", "Of all bytes", "Bits per weight"},
                    {false, false, false, true, true, true},
                    {}};
  if (has_losses) {
    table.heading.emplace_back("Of the loss");
    table.is_number.push_back(true);
  }
  for (const ReportTensor* tensor : order) {
    Row& row = table.rows.emplace_back(Row{{tensor->name},
                                           {tensor->shape},
                                           {tensor->precision},
                                           {whole_bytes(tensor->bytes)},
                                           {percent_text(bytes > 0 ? tensor->bytes / bytes : 0)},
                                           {fmt::format("{:.3f}", tensor->bits_per_weight)}});
    if (has_losses) row.push_back({tensor->loss_share ? percent_text(*tensor->loss_share) : ""});
  }
  add_table(html, table);
}

}  // namespace

void add_bit_map(HtmlWriter& html, const std::vector<ReportTensor>& tensors, const std::string& id) {
  std::map<std::string, double> bits, bytes, weights, losses;
  for (const ReportTensor& tensor : tensors) {
    if (!tensor.is_coded || !(tensor.bits_per_weight > 0) || !std::isfinite(tensor.bits_per_weight)) continue;
    bits[tensor.name] = tensor.bits_per_weight;
    bytes[tensor.name] = tensor.bytes;
    weights[tensor.name] = 8 * tensor.bytes / tensor.bits_per_weight;
    losses[tensor.name] = tensor.loss_share.value_or(0);
  }
  const HeatMap map = heat_map(bits);
  if (map.empty()) return;
  html.open("div", {{"class", "two"}});
  html.open("div", {{"class", "scroll"}, {"role", "group"}, {"aria-label", "Bits per weight"}, {"tabindex", "0"}});
  add_heat_map(html, map, {id, "bits per weight"});
  html.close().open("div", {{"class", "kinds"}});
  add_kinds(html, map.kinds, sums(heat_map(bytes)), sums(heat_map(weights)), sums(heat_map(losses)),
            total_bytes(tensors));
  html.close().close();
}

void add_tensors(HtmlWriter& html, const std::vector<ReportTensor>& tensors) {
  const double bytes = total_bytes(tensors);
  const bool has_losses =
      std::ranges::any_of(tensors, [](const auto& tensor) { return tensor.loss_share.has_value(); });
  const Tensors by_bytes = sorted(tensors, [](const ReportTensor& tensor) { return tensor.bytes; });
  html.open("div", {{"class", "two"}});
  add_largest(html, "Where the bytes are", "Share of the bytes", by_bytes,
              [&](const ReportTensor& tensor) { return bytes > 0 ? tensor.bytes / bytes : 0; });
  if (has_losses) {
    Tensors by_loss = sorted(tensors, share_or_none);
    std::erase_if(by_loss, [](const ReportTensor* tensor) { return !tensor->loss_share; });
    add_largest(html, "Where the loss is", "Share of the loss", by_loss, share_or_none);
  }
  html.close();
  html.open("details", {{"open", tensors.size() <= kFewTensors ? "open" : ""}});
  html.element("summary", {}, fmt::format("All {} tensors", tensors.size()));
  add_all(html, by_bytes, bytes, has_losses);
  html.close();
}

}  // namespace thimble
