// artifact_reader.cpp: agreement between an artifact's table and its header.
#include "packer/container/artifact_reader.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/count_text.h"

namespace thimble {
namespace {

void check_section(const SectionEntry& entry, const ContentShape& shape, const std::string& where) {
  if (entry.kind != shape.kind)
    throw FormatError(where, fmt::format("the header calls for {} here", section_kind_name(shape.kind)));
  if (std::ranges::count(allowed_layouts(shape), entry.layout) == 0)
    throw FormatError(where, fmt::format("layout {} does not fit these contents", layout_name(entry.layout)));
  if (const Codec& codec = codec_of(entry.codec); !codec.takes(shape, entry.layout))
    throw FormatError(where, fmt::format("codec {} is only for codes in the plain layout", codec.name));
  if (const uint64_t expected = laid_out_bytes(entry.layout, shape); entry.raw_bytes != expected)
    throw FormatError(
        where, fmt::format("declares {} B when decompressed, the header implies {} B", entry.raw_bytes, expected));
}

}  // namespace

OpenArtifact open_artifact(Bytes file, const std::string& path) {
  auto [version, sections] = read_container(file, path);
  const std::string where = section_where(path, 0, SectionKind::kHeader);
  const ContentShape header_shape{SectionKind::kHeader, 1, sections[0].entry.raw_bytes};
  check_section(sections[0].entry, header_shape, where);
  const ByteVector text = decompress_section(sections[0], header_shape, where);
  ArtifactHeader header = parse_header(text, where);
  if (const uint32_t implied = format_version_of(header); version != implied)
    throw FormatError(path, fmt::format("format version {}, its tensors imply {}", version, implied));
  check_expansion(header.tensors, file.size(), path);
  OpenArtifact artifact{version, plan_artifact(std::move(header), std::string(as_text(text)), path),
                        std::move(sections)};
  const std::vector<PlannedSection>& planned = artifact.plan.sections;
  if (artifact.sections.size() != planned.size())
    throw FormatError(
        path, fmt::format("{}, the header implies {}", counted(artifact.sections.size(), "section"), planned.size()));
  for (size_t i = 1; i < planned.size(); ++i) {
    const SectionEntry& entry = artifact.sections[i].entry;
    check_section(entry, planned[i].shape, section_where(path, i, entry.kind));
  }
  return artifact;
}

ByteVector read_content(const OpenArtifact& artifact, size_t i, const std::string& path) {
  const StoredSection& section = artifact.sections[i];
  const PlannedSection& planned = artifact.plan.sections[i];
  const std::string where = section_where(path, i, section.entry.kind);
  const ByteVector raw = decompress_section(section, planned.shape, where);
  ByteVector content = undo_layout(section.entry.layout, planned.shape, raw, where);
  // What has no place in 4 bits would become another code there; the ranges of others are checked in the model.
  if (planned.shape.kind == SectionKind::kCodes &&
      artifact.plan.header.tensors[planned.slices[0].tensor].encoding == Encoding::kNvfp4)
    check_code_range({reinterpret_cast<const int8_t*>(content.data()), content.size()}, kMaxNvfp4Level, where);
  return content;
}

}  // namespace thimble
