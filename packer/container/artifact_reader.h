// artifact_reader.h: an artifact whose structure has been checked, with its sections still compressed. What decoding
// and describing start from.
#pragma once

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

// Checks the container, the header, and that kinds, layouts and sizes of all sections are those the header implies.
// Throws FormatError(path, ...). `file` must outlive the result.
OpenArtifact open_artifact(Bytes file, const std::string& path);

// Content of section i, not the header. Throws FormatError(path, ...).
ByteVector read_content(const OpenArtifact& artifact, size_t i, const std::string& path);

}  // namespace thimble
