// checkpoint_report.cpp: see checkpoint_report.h.
#include "quantizer/checkpoints/checkpoint_report.h"

#include <fmt/format.h>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/console/console.h"

namespace thimble {
namespace {

struct ParameterCounts {
  std::map<std::string, int64_t> by_dtype;
  int64_t all = 0;
};

ParameterCounts count_parameters(const TensorMap& tensors) {
  ParameterCounts counts;
  for (const auto& [name, tensor] : tensors) {
    counts.by_dtype[std::string(dtype_name(tensor.dtype))] += element_count(tensor.shape);
    counts.all += element_count(tensor.shape);
  }
  return counts;
}

// Config and family, or why there are none.
void add_family(const std::string& config_path, CheckpointReport& report) {
  try {
    const OpenedCheckpoint opened(report.file.path(), config_path);
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
  CheckpointReport report{open_checkpoint(path)};
  add_family(config_path, report);
  return report;
}

Json to_json(const CheckpointReport& report) {
  Json tensors = Json::array();
  for (const auto& [name, tensor] : report.file.tensors())
    tensors.push_back({{"name", name},
                       {"shape", tensor.shape},
                       {"dtype", dtype_name(tensor.dtype)},
                       {"elements", element_count(tensor.shape)},
                       {"bytes", tensor.bytes.size()}});
  const ParameterCounts parameters = count_parameters(report.file.tensors());
  return {{"kind", "checkpoint"},
          {"path", report.file.path()},
          {"format", report.file.format_name()},
          {"file_bytes", report.file.file_bytes()},
          {"parameters", parameters.all},
          {"parameters_by_dtype", parameters.by_dtype},
          {"family", report.family.empty() ? Json() : Json(report.family)},
          {"config", report.config},
          {"config_from", report.config_from},
          {"banked", report.banked},
          {"problem", report.problem},
          {"tensors", tensors}};
}

std::string to_text(const CheckpointReport& report) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "shape", "dtype", "elements", "bytes"}};
  for (const auto& [name, tensor] : report.file.tensors())
    rows.push_back({name, shape_text(tensor.shape), std::string(dtype_name(tensor.dtype)),
                    count_text(element_count(tensor.shape)), count_text(tensor.bytes.size())});
  const ParameterCounts parameters = count_parameters(report.file.tensors());
  std::string dtypes;
  for (const auto& [dtype, count] : parameters.by_dtype)
    dtypes += fmt::format("{}{} in {}", dtypes.empty() ? "" : ", ", count_text(count), dtype);
  std::vector<std::pair<std::string, std::string>> facts = {
      {"checkpoint", report.file.path()},
      {"format", std::string(report.file.format_name())},
      {"file", bytes_text(report.file.file_bytes())},
      {"parameters", fmt::format("{} ({})", count_text(parameters.all), dtypes)},
      {"matrices", report.banked ? "stacked in banks" : "one by one"},
      {"family", report.family.empty() ? "none that can be run" : report.family}};
  if (!report.config_from.empty()) facts.emplace_back("config from", report.config_from);
  if (!report.config.empty()) facts.emplace_back("config", canonical_json(report.config));
  if (!report.problem.empty()) facts.emplace_back("cannot be run", report.problem);
  return table_text(rows) + "\n" + facts_text(facts);
}

}  // namespace thimble
