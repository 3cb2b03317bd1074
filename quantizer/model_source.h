// model_source.h: opening what a user names on the command line: a checkpoint with its config, or an artifact.
#pragma once

#include <optional>
#include <string>

#include "quantizer/checkpoint.h"
#include "runtime/model.h"
#include "runtime/quantized_model.h"

namespace thimble {

// A checkpoint, its tensors under unbanked names, and its config as far as it is known.
struct OpenedCheckpoint {
  Checkpoint file;
  TensorMap tensors;  // unbanked views into the file
  bool banked = false;
  Json config_json = Json::object();  // as found, empty when there is none
  std::string config_path;            // where it was found, for errors
  std::optional<ModelConfig> golf;    // set when it is a golf-gpt
};

// Config: from `config_path` when given, else from the checkpoint itself, else from a sibling config.json.
// A model of another family, or one without a config whose tensors are not a golf-gpt's, opens with `golf` unset.
OpenedCheckpoint open_model_checkpoint(const std::string& path, const std::string& config_path);

// The OpenedCheckpoint's golf config, or a FormatError that says what the checkpoint is instead.
const ModelConfig& require_golf(const OpenedCheckpoint& checkpoint);

bool is_artifact(const std::string& path);

struct LoadedModel {
  Model model;
  uint64_t file_bytes = 0;
  bool from_artifact = false;
};

// A checkpoint or an artifact, ready to run. An artifact takes no config.
LoadedModel load_model(const std::string& path, const std::string& config_path);

QuantizedModel load_artifact(const std::string& path);

}  // namespace thimble
