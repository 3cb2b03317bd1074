// section_plan.h: how a tensor table is cut into sections. A function of the table alone, so the header need not say
// where anything is, and every stored byte is covered exactly once.
#pragma once

#include <string>
#include <vector>

#include "packer/layout/artifact_header.h"
#include "packer/layout/section_layout.h"

namespace thimble {

// Some consecutive content bytes of one tensor: of its codes, its row scales or its raw elements, as the section's
// kind.
struct TensorSlice {
  size_t tensor = 0;  // index into the tensor table
  uint64_t first_byte = 0;
  uint64_t bytes = 0;
};

struct PlannedSection {
  ContentShape shape;
  std::vector<TensorSlice> slices;  // in order; together shape.content_bytes(), but for the header
};

struct ArtifactPlan {
  ArtifactHeader header;
  std::string text;                      // of the header
  std::vector<PlannedSection> sections;  // all of the file, section 0 being the header itself
};

// Sections 1, 2, ... are
// - codes: tensors in order. Row-scaled ones and those in NVFP4 are cut into blocks of as many whole rows as fit in
//   kMaxSectionContentBytes; a longer row is cut into pieces of that size. Stepped ones are cut into blocks of as many
//   whole trellis segments (kTrellisRows rows) as have at most kMaxSectionContentBytes codes, at least one;
// - scales: all row scales, or row steps and column steps, concatenated in tensor order and cut every
//   kMaxSectionContentBytes; then, in the same way, tensor scale (float32) and block scales of those in NVFP4;
// - raw: for element sizes 1, 2, 4, 8 all raw tensors of that size, concatenated and cut in the same way.
// Empty tensors have no sections. Throws FormatError(where, ...) when more than kMaxSections would be needed, or
// a trellis segment of more than kMaxSteppedSectionBytes.
ArtifactPlan plan_artifact(ArtifactHeader header, std::string text, const std::string& where);

// Throws FormatError(where, ...) when the decoded model would be larger than a file of `file_bytes` may hold.
void check_expansion(const std::vector<TensorEntry>& tensors, uint64_t file_bytes, const std::string& where);

}  // namespace thimble
