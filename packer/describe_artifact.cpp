// describe_artifact.cpp: fills the summary from table and header.
#include "packer/describe_artifact.h"

#include "packer/container/artifact_reader.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

SectionSummary summarize(const StoredSection& section, uint64_t content_bytes) {
  return {std::string(section_kind_name(section.entry.kind)),
          std::string(codec_of(section.entry.codec).name),
          std::string(layout_name(section.entry.layout)),
          {},
          content_bytes,
          section.entry.raw_bytes,
          section.entry.stored_bytes};
}

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
  summary.container_bytes = kPrefixBytes + (artifact.plan.size() + 1) * kSectionEntryBytes;
  summary.format_version = artifact.version;
  summary.header_json = header_text(artifact.header, path);
  summary.banked = artifact.header.banked;
  summary.config_json = artifact.header.config_json;
  summary.provenance_json = artifact.header.provenance_json;
  for (const TensorEntry& entry : artifact.header.tensors) summary.tensors.push_back(summarize(entry));
  summary.sections.push_back(summarize(artifact.header_section, artifact.header_section.entry.raw_bytes));
  for (size_t i = 0; i < artifact.plan.size(); ++i) {
    const PlannedSection& plan = artifact.plan[i];
    SectionSummary section = summarize(artifact.sections[i], plan.shape.content_bytes());
    if (plan.slices.size() == 1) section.tensor = summary.tensors[plan.slices.front().tensor].name;
    for (const TensorSlice& slice : plan.slices)
      summary.tensors[slice.tensor].stored_bytes += static_cast<double>(section.stored_bytes) *
                                                    static_cast<double>(slice.bytes) /
                                                    static_cast<double>(section.content_bytes);
    summary.sections.push_back(std::move(section));
  }
  for (StoredTensorSummary& tensor : summary.tensors)
    if (tensor.elements > 0) tensor.bits_per_weight = 8 * tensor.stored_bytes / static_cast<double>(tensor.elements);
  return summary;
}

std::vector<LibraryVersion> codec_versions() {
  std::vector<LibraryVersion> versions;
  for (const Codec& codec : all_codecs())
    if (codec.id != CodecId::kNone) versions.push_back({std::string(codec.name), codec.version()});
  return versions;
}

}  // namespace thimble
