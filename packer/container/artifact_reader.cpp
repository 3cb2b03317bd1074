// artifact_reader.cpp: agreement between an artifact's table and its header.
#include "packer/container/artifact_reader.h"

#include <algorithm>

#include "packer/layout/section_layout.h"
#include "runtime/base/count_text.h"

namespace thimble {
namespace {

void check_section(const SectionEntry& entry, const ContentShape& shape, const std::string& where) {
  if (entry.kind != shape.kind)
    throw FormatError(where, "the header calls for " + std::string(section_kind_name(shape.kind)) + " here");
  if (std::ranges::count(allowed_layouts(shape), entry.layout) == 0)
    throw FormatError(where, "layout " + std::string(layout_name(entry.layout)) + " does not fit these contents");
  if (const Codec& codec = codec_of(entry.codec); !codec.takes(shape, entry.layout))
    throw FormatError(where, "codec " + std::string(codec.name) + " is only for codes in the plain layout");
  if (uint64_t expected = laid_out_bytes(entry.layout, shape); entry.raw_bytes != expected)
    throw FormatError(where, "declares " + std::to_string(entry.raw_bytes) +
                                 " B when decompressed, the header implies " + std::to_string(expected) + " B");
}

}  // namespace

OpenArtifact open_artifact(Bytes file, const std::string& path) {
  const StoredContainer container = read_container(file, path);
  const std::vector<StoredSection>& sections = container.sections;
  OpenArtifact artifact;
  artifact.header_section = sections.front();
  const std::string where = section_where(path, 0, SectionKind::kHeader);
  const SectionEntry& header_entry = artifact.header_section.entry;
  const ContentShape header_shape{SectionKind::kHeader, 1, header_entry.raw_bytes};
  if (header_entry.layout != LayoutId::kPlain)
    throw FormatError(where, "layout " + std::string(layout_name(header_entry.layout)) + ", must be plain");
  check_section(header_entry, header_shape, where);
  artifact.header = parse_header(decompress_section(artifact.header_section, header_shape, where), where);
  artifact.version = container.version;
  if (const uint32_t implied = format_version_of(artifact.header); container.version != implied)
    throw FormatError(
        path, "format version " + std::to_string(container.version) + ", its tensors imply " + std::to_string(implied));
  check_expansion(artifact.header.tensors, file.size(), path);
  artifact.plan = plan_sections(artifact.header.tensors, path);
  if (sections.size() != artifact.plan.size() + 1)
    throw FormatError(
        path, counted(sections.size(), "section") + ", the header implies " + std::to_string(artifact.plan.size() + 1));
  artifact.sections.assign(sections.begin() + 1, sections.end());
  for (size_t i = 0; i < artifact.plan.size(); ++i) {
    const SectionEntry& entry = artifact.sections[i].entry;
    check_section(entry, artifact.plan[i].shape, section_where(path, i + 1, entry.kind));
  }
  return artifact;
}

bool is_nvfp4_section(const OpenArtifact& artifact, size_t i) {
  return artifact.plan[i].shape.kind == SectionKind::kCodes &&
         artifact.header.tensors[artifact.plan[i].slices[0].tensor].encoding == Encoding::kNvfp4;
}

ByteVector read_content(const OpenArtifact& artifact, size_t i, const std::string& path) {
  const StoredSection& section = artifact.sections[i];
  const std::string where = section_where(path, i + 1, section.entry.kind);
  ByteVector raw = decompress_section(section, artifact.plan[i].shape, where);
  ByteVector content = undo_layout(section.entry.layout, artifact.plan[i].shape, raw, where);
  // What has no place in 4 bits would become another code there; the ranges of others are checked in the model.
  if (is_nvfp4_section(artifact, i))
    check_code_range({reinterpret_cast<const int8_t*>(content.data()), content.size()}, kMaxNvfp4Level, where);
  return content;
}

}  // namespace thimble
