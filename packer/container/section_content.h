// section_content.h: moves bytes between a model's tensors and the contents of planned sections.
#pragma once

#include "packer/layout/section_plan.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// The tensors of a header, without contents.
QuantizedModel empty_model(const ArtifactHeader& header);

// The section's content, gathered from the tensors its slices name.
ByteVector gather_content(const QuantizedModel& model, const PlannedSection& section);

// The inverse. Sections must come in file order: each slice is appended to what its tensor holds already. Codes of
// NVFP4 must lie within +-kMaxNvfp4Level (read_content() checks it).
void append_content(QuantizedModel& model, const PlannedSection& section, Bytes content);

}  // namespace thimble
