// checkpoint_report.h: what `inspect` says of a checkpoint: its tensors as the file has them, its config and family.
// Copies no weights.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "runtime/base/json.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

struct StoredTensor {
  Shape shape;
  DType dtype = DType::kF32;
  uint64_t elements = 0, bytes = 0;
};

struct CheckpointReport {
  std::string path, format;  // "safetensors", "torch", "llm.c"
  uint64_t file_bytes = 0;
  std::map<std::string, StoredTensor> tensors;  // without wrapper prefixes
  std::map<std::string, uint64_t> parameters;   // by dtype
  uint64_t all_parameters = 0;
  std::string family;       // its name; empty where it cannot be run
  std::string config_from;  // where the config was found
  Json config = Json::object();
  bool banked = false;
  std::string problem;  // why it cannot be run, else empty
};

// FormatError or IoError for what is no checkpoint. A model that cannot be run is one all the same: its report says
// why.
CheckpointReport describe_checkpoint(const std::string& path, const std::string& config_path);

Json to_json(const CheckpointReport& report);
std::string to_text(const CheckpointReport& report);

}  // namespace thimble
