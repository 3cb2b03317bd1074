// stored_model.h: a model in memory as what a file has of it: its header, its plan, and the rules that its contents
// obey.
#pragma once

#include <string>
#include <vector>

#include "packer/layout/section_plan.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// Throws FormatError(where, ...) when the contents of a tensor break a rule of the format: sizes that contradict the
// shape, codes or scales out of range. `entries`: those of header_of(model), which parse_header() accepts.
void check_contents(const QuantizedModel& model, const std::vector<TensorEntry>& entries, const std::string& where);
TensorEntry entry_of(const QuantizedTensor& tensor);
ArtifactHeader header_of(const QuantizedModel& model);

// The canonical JSON. Throws FormatError(where, ...) when the header breaks a rule: names unsorted or not printable,
// config or provenance not a canonical JSON object, a shape or an encoding that cannot be.
std::string header_text(const ArtifactHeader& header, const std::string& where);

// Config and provenance as canonical_json() writes them, or a FormatError(where, ...): parse_header() has not looked at
// how their numbers are spelled.
void check_canonical_json(const ArtifactHeader& header, const std::string& where);

// Of a model that shall become a file. Throws FormatError(where, ...) also when the model breaks a rule of the format.
ArtifactPlan plan_artifact(const QuantizedModel& model, const std::string& where);

}  // namespace thimble
