// checkpoint_report.h: what `inspect` says of a checkpoint: its tensors as the file has them, its config and family.
// Copies no weights.
#pragma once

#include <string>

#include "quantizer/checkpoints/checkpoint.h"

namespace thimble {

struct CheckpointReport {
  Checkpoint file;
  std::string family = {};       // its name; empty where it cannot be run
  std::string config_from = {};  // where the config was found
  Json config = Json::object();
  bool banked = false;
  std::string problem = {};  // why it cannot be run, else empty
};

// FormatError or IoError for what is no checkpoint. A model that cannot be run is one all the same: its report says
// why.
CheckpointReport describe_checkpoint(const std::string& path, const std::string& config_path);

Json to_json(const CheckpointReport& report);
std::string to_text(const CheckpointReport& report);

}  // namespace thimble
