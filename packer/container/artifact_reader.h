// artifact_reader.h: an artifact whose structure has been checked, with its sections still compressed. What decoding,
// describing and verifying start from.
#pragma once

#include <string>
#include <vector>

#include "packer/container/container.h"
#include "packer/layout/artifact_header.h"
#include "packer/layout/section_plan.h"

namespace thimble {

struct OpenArtifact {
  uint32_t version = 0;  // of the format
  ArtifactHeader header;
  StoredSection header_section;         // section 0
  std::vector<PlannedSection> plan;     // of sections 1, 2, ...
  std::vector<StoredSection> sections;  // the same sections as stored
};

// Checks the container, the header, and that kinds, layouts and sizes of all sections are those the header implies.
// Throws FormatError(path, ...). `file` must outlive the result.
OpenArtifact open_artifact(Bytes file, const std::string& path);

// Whether section i + 1 has codes of a tensor in NVFP4.
bool is_nvfp4_section(const OpenArtifact& artifact, size_t i);

// Content of section i + 1, that is of plan[i]. Throws FormatError(path, ...).
ByteVector read_content(const OpenArtifact& artifact, size_t i, const std::string& path);

}  // namespace thimble
