// inspect_command.cpp: `thimble inspect`: what an artifact holds: per tensor shape, precision, bytes, bits per weight.
#include <fmt/format.h>

#include "packer/describe_artifact.h"
#include "quantizer/commands.h"
#include "runtime/file.h"

namespace thimble {
namespace {

uint64_t total_elements(const ArtifactSummary& summary) {
  uint64_t elements = 0;
  for (const StoredTensorSummary& tensor : summary.tensors) elements += tensor.elements;
  return elements;
}

double bits_per_parameter(const ArtifactSummary& summary) {
  uint64_t elements = total_elements(summary);
  return elements == 0 ? 0 : 8.0 * static_cast<double>(summary.file_bytes) / static_cast<double>(elements);
}

Json to_json(const ArtifactSummary& summary, const std::string& path) {
  Json tensors = Json::array(), sections = Json::array();
  for (const StoredTensorSummary& tensor : summary.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"precision", tensor.precision},
                       {"elements", tensor.elements},
                       {"stored_bytes", tensor.stored_bytes},
                       {"bits_per_weight", tensor.bits_per_weight}});
  for (const SectionSummary& section : summary.sections)
    sections.push_back({{"kind", section.kind},
                        {"codec", section.codec},
                        {"layout", section.layout},
                        {"tensor", section.tensor},
                        {"raw_bytes", section.raw_bytes},
                        {"stored_bytes", section.stored_bytes}});
  return {{"path", path},
          {"file_bytes", summary.file_bytes},
          {"container_bytes", summary.container_bytes},
          {"format_version", summary.format_version},
          {"parameters", total_elements(summary)},
          {"bits_per_parameter", bits_per_parameter(summary)},
          {"banked", summary.banked},
          {"config", parse_json(as_bytes_of(summary.config_json), path)},
          {"provenance", parse_json(as_bytes_of(summary.provenance_json), path)},
          {"tensors", tensors},
          {"sections", sections}};
}

std::string to_text(const ArtifactSummary& summary) {
  std::vector<std::vector<std::string>> rows = {{"tensor", "shape", "precision", "bytes", "bits/weight"}};
  for (const StoredTensorSummary& tensor : summary.tensors)
    rows.push_back({tensor.name, shape_text(tensor.shape), tensor.precision,
                    count_text(static_cast<int64_t>(tensor.stored_bytes + 0.5)),
                    fmt::format("{:.3f}", tensor.bits_per_weight)});
  std::string text = table_text(rows) + "\n";
  uint64_t header_bytes = 0;
  for (const SectionSummary& section : summary.sections)
    if (section.kind == "header") header_bytes += section.stored_bytes;
  return text + facts_text({{"file", bytes_text(summary.file_bytes)},
                            {"header", bytes_text(header_bytes)},
                            {"section table", bytes_text(summary.container_bytes)},
                            {"parameters", count_text(static_cast<int64_t>(total_elements(summary)))},
                            {"bits per parameter", fmt::format("{:.3f}", bits_per_parameter(summary))},
                            {"format version", std::to_string(summary.format_version)},
                            {"config", summary.config_json},
                            {"made by", summary.provenance_json}});
}

}  // namespace

void add_inspect_command(CommandLine& line) {
  auto path = std::make_shared<std::string>();
  CLI::App* command =
      add_command(line, "inspect", "Show an artifact's tensors, precisions and bytes", "thimble inspect model.thmb");
  command->add_option("artifact", *path, "Artifact (.thmb)")->required();
  command->callback([&line, path] {
    line.action = [path](Console& console) {
      ArtifactSummary summary = describe_artifact(MappedFile(*path).bytes(), *path);
      console.result(to_text(summary), to_json(summary, *path));
    };
  });
}

}  // namespace thimble
