// model_card.h: the README.md of a folder with an artifact that `transformers` loads, as model hubs show it: how large
// the model is, how much it lost and how that was measured, and how to load it.
#pragma once

#include <string>

#include "packer/artifact.h"

namespace thimble {

// `folder` names the model. `report_path`: what `quantize --json` printed, or empty; what is not the report of this
// artifact is a FormatError(report_path). Without one, or without an evaluation in it, the card has no bits per byte.
std::string model_card(const std::string& folder, const ArtifactSummary& summary, const std::string& report_path);

}  // namespace thimble
