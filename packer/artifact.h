// artifact.h: the packer's interface: a quantized model to the bytes of an artifact (.thmb), and back.
// docs/reference/format.md describes the file. Equal models, options and library versions give equal bytes, whatever
// the number of threads; decode_artifact(encode_artifact(m)) == m, bit for bit. `path` only names the file in errors.
#pragma once

#include <string>
#include <vector>

#include "packer/container/section_packer.h"
#include "runtime/base/progress.h"
#include "runtime/codes/quantized_model.h"

namespace thimble {

// Throws FormatError when the model breaks a rule of the format (see plan_artifact in section_plan.h).
// Progress: one stage, in bytes of content.
ByteVector encode_artifact(const QuantizedModel& model, const EncodeOptions& options, SectionCache& cache,
                           Progress& progress);

// Verifies checksums and every rule of the format; whatever is wrong with the file is a FormatError.
// Memory: the model, at most kExpansionFloorBytes + kMaxExpansion x the file (checked first), and one tensor more.
QuantizedModel decode_artifact(Bytes file, const std::string& path);

}  // namespace thimble
