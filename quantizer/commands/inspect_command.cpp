// inspect_command.cpp: `thimble inspect`: what an artifact holds: per tensor shape, precision, bytes, bits per weight;
// with the report of the run that made it also its share of the loss; bits per weight as a map over layers. Of a
// checkpoint, its tensors, config and family.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "packer/artifact.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/commands/commands.h"
#include "quantizer/reports/gnuplot.h"
#include "quantizer/reports/report_tensors.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/file.h"

namespace thimble {
namespace {

struct InspectArguments {
  std::string file, config, report, heat_map;
};

int64_t parameters_of(const ArtifactSummary& summary) {
  uint64_t elements = 0;
  for (const StoredTensorSummary& tensor : summary.tensors) elements += tensor.elements;
  return static_cast<int64_t>(elements);
}

std::map<std::string, uint64_t> stored_bytes_by_kind(const ArtifactSummary& summary) {
  std::map<std::string, uint64_t> bytes;
  for (const SectionSummary& section : summary.sections) bytes[section.kind] += section.stored_bytes;
  return bytes;
}

Json to_json(const HeatMap& map) {
  Json values = Json::array();
  for (const auto& row : map.values) {
    Json& cells = values.emplace_back(Json::array());
    for (const std::optional<double>& value : row) cells.push_back(value ? Json(*value) : Json());
  }
  return {{"kinds", map.kinds}, {"layers", map.layers}, {"bits_per_weight", values}};
}

Json to_json(const ArtifactSummary& summary, const std::vector<ReportTensor>& tensors, const std::string& path) {
  Json tensors_json = Json::array(), sections = Json::array();
  for (const ReportTensor& tensor : tensors) {
    Json& json = tensors_json.emplace_back(Json{{"name", tensor.name},
                                                {"shape", tensor.shape},
                                                {"precision", tensor.precision},
                                                {"elements", tensor.elements},
                                                {"stored_bytes", tensor.stored_bytes},
                                                {"bits_per_weight", tensor.bits_per_weight}});
    if (const auto& steps = tensor.raw_steps) {
      json["log2_step"] = steps->log2_step;
      json["significant_bits"] = steps->bits;
    }
    if (!tensor.reported) continue;
    json["predicted_loss"] = tensor.reported->predicted_loss;
    json["loss_share"] = *tensor.loss_share;
    if (const auto distance = tensor.reported->distance_bits_per_weight) json["distance_bits_per_weight"] = *distance;
  }
  for (const SectionSummary& section : summary.sections)
    sections.push_back({{"kind", section.kind},
                        {"codec", section.codec},
                        {"layout", section.layout},
                        {"tensor", section.tensor},
                        {"raw_bytes", section.raw_bytes},
                        {"stored_bytes", section.stored_bytes}});
  return {{"kind", "artifact"},
          {"path", path},
          {"file_bytes", summary.file_bytes},
          {"container_bytes", summary.container_bytes},
          {"format_version", summary.format_version},
          {"parameters", parameters_of(summary)},
          {"bits_per_parameter", bits_each(summary.file_bytes, parameters_of(summary))},
          {"banked", summary.banked},
          {"config", parse_json(as_bytes_of(summary.config_json), path)},
          {"provenance", parse_json(as_bytes_of(summary.provenance_json), path)},
          {"tensors", tensors_json},
          {"bytes_by_kind", stored_bytes_by_kind(summary)},
          {"heat_map", to_json(bits_map(tensors))},
          {"sections", sections}};
}

// "F16, 8 bits" where that is less than a value of the type may have.
std::string precision_text(const ReportTensor& tensor) {
  constexpr int kFewBits = 11;  // of fp16's mantissa
  if (!tensor.raw_steps || tensor.raw_steps->bits > kFewBits) return tensor.precision;
  return fmt::format("{}, {}", tensor.precision, counted(tensor.raw_steps->bits, "bit"));
}

std::string to_text(const ArtifactSummary& summary, const std::vector<ReportTensor>& tensors) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "shape", "precision", "bytes", "bits/weight"}};
  // Columns for what the report says of each matrix, where there is a report.
  if (std::ranges::any_of(tensors, [](const ReportTensor& tensor) { return tensor.reported.has_value(); }))
    rows[0].insert(rows[0].end(), {"loss share", "above bound"});
  for (const ReportTensor& tensor : tensors) {
    rows.push_back({tensor.name, shape_text(tensor.shape), precision_text(tensor),
                    count_text(static_cast<int64_t>(tensor.stored_bytes + 0.5)),
                    fmt::format("{:.3f}", tensor.bits_per_weight)});
    if (!tensor.reported) continue;
    rows.back().push_back(fmt::format("{:.2f} %", 100 * *tensor.loss_share));
    if (const auto distance = tensor.reported->distance_bits_per_weight)
      rows.back().push_back(fmt::format("{:.3f}", *distance));
  }
  std::string text = table_text(rows) + "\n";
  for (const std::string& map :
       {to_text(bits_map(tensors), "bits per weight"), to_text(loss_map(tensors), "share of the loss")})
    if (!map.empty()) text += map + "\n";
  std::map<std::string, uint64_t> bytes = stored_bytes_by_kind(summary);
  return text + facts_text({{"file", bytes_text(summary.file_bytes)},
                            {"header", bytes_text(bytes["header"])},
                            {"section table", bytes_text(summary.container_bytes)},
                            {"codes", bytes_text(bytes["codes"])},
                            {"steps and scales", bytes_text(bytes["scales"])},
                            {"tensors without codes", bytes_text(bytes["raw"])},
                            {"parameters", count_text(parameters_of(summary))},
                            {"bits per parameter",
                             fmt::format("{:.3f}", bits_each(summary.file_bytes, parameters_of(summary)))},
                            {"format version", std::to_string(summary.format_version)},
                            {"config", summary.config_json},
                            {"made by", summary.provenance_json}});
}

void draw_heat_map(const HeatMap& map, const std::string& output, const std::string& path) {
  if (!output.ends_with(".svg") && !output.ends_with(".png"))
    throw UsageError("--heat-map is '" + output + "', its name must end in .svg or .png");
  if (map.empty()) throw FormatError(path, "no quantized matrix has a layer's number in its name: no heat map");
  if (output.ends_with(".svg")) return write_file_atomically(output, heat_map_svg(map, "bits per weight"));
  const std::filesystem::path file(output);
  run_gnuplot(heat_map_script(map, "bits per weight", file.filename().string()), {file.filename().string()},
              file.parent_path().string());
}

void inspect_artifact(const InspectArguments& options, Console& console) {
  const std::string& path = options.file;
  if (!options.config.empty())
    throw UsageError("--config is for checkpoints; '" + path + "' is an artifact with its own");
  FileRoles roles;
  roles.model(path);
  roles.input("the --report", options.report);
  roles.output("--heat-map", options.heat_map);
  roles.check();
  ArtifactSummary summary = describe_artifact(MappedFile(path).bytes(), path);
  ReportedMatrices reported;
  if (!options.report.empty())
    reported = read_quantize_report(MappedFile(options.report).bytes(), options.report, summary);
  const std::vector<ReportTensor> tensors = report_tensors(summary, reported);
  if (!options.heat_map.empty()) draw_heat_map(bits_map(tensors), options.heat_map, path);
  console.result(to_text(summary, tensors), to_json(summary, tensors, path));
}

// What to say of a checkpoint: its tensors as the file has them, config and family. Copies no weights.
struct CheckpointReport {
  Checkpoint file;
  std::string family = {};       // its name; empty where it cannot be run
  std::string config_from = {};  // where the config was found
  Json config = Json::object();
  bool banked = false;
  std::string problem = {};  // why it cannot be run, else empty
};

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
    const OpenedCheckpoint opened(report.file.path(), config_path, Contents::kShapes);
    report.config = opened.config_json();
    report.config_from = opened.config_path();
    report.banked = opened.banked();
    report.config = opened.runnable().config;
    report.family = opened.runnable().family->name();
  } catch (const FormatError& error) {
    report.problem = error.what();
  }
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

// A model that cannot be run is a checkpoint all the same: the report says why.
void inspect_checkpoint(const InspectArguments& options, Console& console) {
  for (const auto& [name, value] : {std::pair("--report", options.report), std::pair("--heat-map", options.heat_map)})
    if (!value.empty()) throw UsageError(fmt::format("{} is for artifacts; '{}' is none", name, options.file));
  CheckpointReport report{open_checkpoint(options.file, Contents::kShapes)};
  add_family(options.config, report);
  console.result(to_text(report), to_json(report));
}

}  // namespace

void add_inspect_command(CommandLine& line) {
  auto options = std::make_shared<InspectArguments>();
  CLI::App* command = add_command(
      line, "inspect", "Show what an artifact or a checkpoint holds, tensor by tensor",
      "thimble inspect model.thmb\n  thimble inspect model.thmb --report quantize.json --heat-map bits.svg");
  command->add_option("file", options->file, "Artifact (.thmb) or checkpoint")->required();
  add_config_option(*command, options->config);
  add_file(*command, "--report", options->report,
           "What quantize --json printed when it made the artifact; adds each matrix's share of the loss");
  add_file(*command, "--heat-map", options->heat_map,
           "Draw bits per weight over layers and kinds of matrix (.svg, or .png by gnuplot)");
  set_action(line, *command, [options](Console& console) {
    if (is_artifact(options->file))
      inspect_artifact(*options, console);
    else
      inspect_checkpoint(*options, console);
  });
}

}  // namespace thimble
