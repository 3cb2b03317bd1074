// section_content.h: moves bytes between a model's tensors and the contents of planned sections.
#pragma once

#include <span>

#include "packer/layout/section_plan.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// The tensors of a header, without contents.
QuantizedModel empty_model(const ArtifactHeader& header);

// The content of section i, gathered from the tensors its slices name.
ByteVector gather_content(const QuantizedModel& model, const ArtifactPlan& plan, size_t i);

// A hash of it, which contents of one shape share only where they are equal: of stepped codes as they are in memory,
// which are not gathered for it.
uint64_t hash_content(const QuantizedModel& model, const ArtifactPlan& plan, size_t i);

// The inverse, but for the header. Sections must come in file order: a tensor is given room for its codes, or scales,
// with the first of them. Codes of NVFP4 must lie within +-kMaxNvfp4Level (read_content() checks it).
void scatter_content(QuantizedModel& model, const PlannedSection& section, Bytes content);
// The same in parallel: each content belongs to the section of its number.
void scatter_contents(QuantizedModel& model, std::span<const PlannedSection> sections,
                      std::span<const ByteVector> contents);

}  // namespace thimble
