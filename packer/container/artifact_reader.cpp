// artifact_reader.cpp: agreement between an artifact's table and its header.
#include "packer/container/artifact_reader.h"

#include <algorithm>

#include "runtime/base/count_text.h"
#include "runtime/base/format_error.h"

namespace thimble {
namespace {

void check_section(const SectionEntry& entry, const ContentShape& shape, const std::string& where) {
  if (entry.kind != shape.kind)
    throw_format_error(where, "the header calls for {} here", section_kind_name(shape.kind));
  if (std::ranges::count(allowed_layouts(shape), entry.layout) == 0)
    throw_format_error(where, "layout {} does not fit these contents", layout_name(entry.layout));
  if (!codec_takes(entry.codec, shape, entry.layout))
    throw_format_error(where, "codec {} is only for codes in the plain layout", codec_name(entry.codec));
  if (const uint64_t expected = laid_out_bytes(entry.layout, shape); entry.raw_bytes != expected)
    throw_format_error(where, "declares {} B when decompressed, the header implies {} B", entry.raw_bytes, expected);
}

}  // namespace

ArtifactPlan plan_stored(uint32_t version, std::span<const SectionEntry> entries, Bytes stored_header,
                         uint64_t file_bytes, const std::string& path) {
  const std::string where = section_where(path, 0, SectionKind::kHeader);
  const ContentShape header_shape{SectionKind::kHeader, 1, entries[0].raw_bytes};
  check_section(entries[0], header_shape, where);
  const ByteVector text = decompress_section({entries[0], stored_header}, header_shape, where);
  ArtifactHeader header = parse_header(text, where);
  if (const uint32_t implied = format_version_of(header); version != implied)
    throw_format_error(path, "format version {}, its tensors imply {}", version, implied);
  check_expansion(header.tensors, file_bytes, path);
  ArtifactPlan plan = plan_artifact(std::move(header), std::string(as_text(text)), path);
  if (entries.size() != plan.sections.size())
    throw_format_error(path, "{}, the header implies {}", counted(entries.size(), "section"), plan.sections.size());
  for (size_t i = 1; i < entries.size(); ++i)
    check_section(entries[i], plan.sections[i].shape, section_where(path, i, entries[i].kind));
  return plan;
}

OpenArtifact open_artifact(Bytes file, const std::string& path) {
  auto [version, sections] = read_container(file, path);
  std::vector<SectionEntry> entries;
  for (const StoredSection& section : sections) entries.push_back(section.entry);
  ArtifactPlan plan = plan_stored(version, entries, sections[0].stored, file.size(), path);
  return {version, std::move(plan), std::move(sections)};
}

ByteVector read_content(const StoredSection& section, const ArtifactPlan& plan, size_t i, const std::string& path) {
  const PlannedSection& planned = plan.sections[i];
  const std::string where = section_where(path, i, section.entry.kind);
  ByteVector content =
      undo_layout(section.entry.layout, planned.shape, decompress_section(section, planned.shape, where), where);
  // What has no place in 4 bits would become another code there; the ranges of others are checked in the model.
  if (planned.shape.kind == SectionKind::kCodes &&
      plan.header.tensors[planned.slices[0].tensor].encoding == Encoding::kNvfp4)
    check_code_range({reinterpret_cast<const int8_t*>(content.data()), content.size()}, kMaxNvfp4Level, where);
  return content;
}

}  // namespace thimble
