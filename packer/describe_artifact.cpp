// describe_artifact.cpp: fills the summary from table and header.
#include "packer/describe_artifact.h"

#include "packer/container/artifact_reader.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

StoredTensorSummary summarize(const TensorEntry& entry) {
  StoredTensorSummary summary{entry.name,     entry.shape,      std::string(dtype_name(entry.dtype)),
                              entry.max_code, entry.elements(), entry.coded()};
  if (entry.encoding == Encoding::kRowScaled) summary.precision = "int" + std::to_string(code_bits(entry.max_code));
  if (entry.encoding == Encoding::kStepped) summary.precision = trellis_name(entry.trellis_bits);
  if (entry.encoding == Encoding::kNvfp4) summary.precision = "nvfp4";
  return summary;
}

}  // namespace

ArtifactSummary describe_artifact(Bytes file, const std::string& path) {
  const OpenArtifact artifact = open_artifact(file, path);
  ArtifactSummary summary;
  summary.file_bytes = file.size();
  summary.container_bytes = kPrefixBytes + artifact.sections.size() * kSectionEntryBytes;
  summary.format_version = artifact.version;
  const ArtifactHeader& header = artifact.plan.header;
  summary.banked = header.banked;
  summary.config_json = header.config_json;
  summary.provenance_json = header.provenance_json;
  for (const TensorEntry& entry : header.tensors) summary.tensors.push_back(summarize(entry));
  for (size_t i = 0; i < artifact.sections.size(); ++i) {
    const SectionEntry& entry = artifact.sections[i].entry;
    const PlannedSection& planned = artifact.plan.sections[i];
    const uint64_t content_bytes = planned.shape.content_bytes();
    summary.sections.push_back({std::string(section_kind_name(entry.kind)),
                                std::string(codec_of(entry.codec).name),
                                std::string(layout_name(entry.layout)),
                                {},
                                content_bytes,
                                entry.raw_bytes,
                                entry.stored_bytes});
    if (planned.slices.size() == 1) summary.sections.back().tensor = header.tensors[planned.slices.front().tensor].name;
    for (const TensorSlice& slice : planned.slices)
      summary.tensors[slice.tensor].stored_bytes += static_cast<double>(entry.stored_bytes) *
                                                    static_cast<double>(slice.bytes) /
                                                    static_cast<double>(content_bytes);
  }
  for (StoredTensorSummary& tensor : summary.tensors)
    if (tensor.elements > 0) tensor.bits_per_weight = 8 * tensor.stored_bytes / static_cast<double>(tensor.elements);
  return summary;
}

}  // namespace thimble
