// artifact_reader.h: an artifact whose structure has been checked, with its sections still compressed. What decoding
// and describing start from.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "packer/container/container.h"
#include "packer/layout/section_plan.h"

namespace thimble {

struct OpenArtifact {
  uint32_t version = 0;  // of the format
  ArtifactPlan plan;
  std::vector<StoredSection> sections;  // those of the plan, as stored
};

// The plan of a file with this table, whose header section has these stored bytes. Checks the header, and that kinds,
// layouts and sizes of all sections are those it implies. Throws FormatError(path, ...).
ArtifactPlan plan_stored(uint32_t version, std::span<const SectionEntry> entries, Bytes stored_header,
                         uint64_t file_bytes, const std::string& path);

// Checks the container, the header, and that kinds, layouts and sizes of all sections are those the header implies.
// Throws FormatError(path, ...). `file` must outlive the result.
OpenArtifact open_artifact(Bytes file, const std::string& path);

// Content of section i of a plan, not the header. Throws FormatError(path, ...).
ByteVector read_content(const StoredSection& section, const ArtifactPlan& plan, size_t i, const std::string& path);

}  // namespace thimble
