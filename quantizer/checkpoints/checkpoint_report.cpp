// checkpoint_report.cpp: see checkpoint_report.h.
#include "quantizer/checkpoints/checkpoint_report.h"

#include <fmt/format.h>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/console/console.h"

namespace thimble {
namespace {

void add_tensors(const TensorMap& tensors, CheckpointReport& report) {
  for (const auto& [name, tensor] : tensors) {
    const auto elements = static_cast<uint64_t>(element_count(tensor.shape));
    report.tensors[name] = {tensor.shape, tensor.dtype, elements, tensor.bytes.size()};
    report.parameters[std::string(dtype_name(tensor.dtype))] += elements;
    report.all_parameters += elements;
  }
}

// Config and family, or why there are none.
void add_family(const std::string& config_path, CheckpointReport& report) {
  try {
    const OpenedCheckpoint opened(report.path, config_path);
    report.config = opened.config_json();
    report.config_from = opened.config_path();
    report.banked = opened.banked();
    report.config = opened.runnable().config;
    report.family = report.config.at("architecture").get<std::string>();
  } catch (const FormatError& error) {
    report.problem = error.what();
  }
}

}  // namespace

CheckpointReport describe_checkpoint(const std::string& path, const std::string& config_path) {
  const Checkpoint file = open_checkpoint(path);
  CheckpointReport report;
  report.path = path;
  report.format = file.format_name();
  report.file_bytes = file.file_bytes();
  add_tensors(file.tensors(), report);
  add_family(config_path, report);
  return report;
}

Json to_json(const CheckpointReport& report) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : report.tensors)
    tensors.push_back({{"name", name},
                       {"shape", tensor.shape},
                       {"dtype", dtype_name(tensor.dtype)},
                       {"elements", tensor.elements},
                       {"bytes", tensor.bytes}});
  return {{"kind", "checkpoint"},
          {"path", report.path},
          {"format", report.format},
          {"file_bytes", report.file_bytes},
          {"parameters", report.all_parameters},
          {"parameters_by_dtype", report.parameters},
          {"family", report.family.empty() ? Json() : Json(report.family)},
          {"config", report.config},
          {"config_from", report.config_from},
          {"banked", report.banked},
          {"problem", report.problem},
          {"tensors", tensors}};
}

std::string to_text(const CheckpointReport& report) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "shape", "dtype", "elements", "bytes"}};
  for (const auto& [name, tensor] : report.tensors)
    rows.push_back({name, shape_text(tensor.shape), std::string(dtype_name(tensor.dtype)),
                    count_text(static_cast<int64_t>(tensor.elements)), count_text(static_cast<int64_t>(tensor.bytes))});
  std::string dtypes;
  for (const auto& [dtype, count] : report.parameters)
    dtypes += fmt::format("{}{} in {}", dtypes.empty() ? "" : ", ", count_text(static_cast<int64_t>(count)), dtype);
  std::vector<std::pair<std::string, std::string>> facts = {
      {"checkpoint", report.path},
      {"format", report.format},
      {"file", bytes_text(report.file_bytes)},
      {"parameters", fmt::format("{} ({})", count_text(static_cast<int64_t>(report.all_parameters)), dtypes)},
      {"matrices", report.banked ? "stacked in banks" : "one by one"},
      {"family", report.family.empty() ? "none that can be run" : report.family}};
  if (!report.config_from.empty()) facts.emplace_back("config from", report.config_from);
  if (!report.config.empty()) facts.emplace_back("config", canonical_json(report.config));
  if (!report.problem.empty()) facts.emplace_back("cannot be run", report.problem);
  return table_text(rows) + "\n" + facts_text(facts);
}

}  // namespace thimble
