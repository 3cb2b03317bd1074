// model_source.h: opening what a user names on the command line: a checkpoint with its config, or an artifact.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "quantizer/checkpoints/checkpoint.h"
#include "runtime/base/file.h"
#include "runtime/codes/block_feed.h"
#include "runtime/codes/quantized_model.h"
#include "runtime/device/device.h"
#include "runtime/families/any_model.h"
#include "runtime/families/golf/model.h"

namespace thimble {

// A checkpoint, its tensors under the names and in the layout of its family, and its config as far as it is known.
struct OpenedCheckpoint {
  Checkpoint file;
  TensorMap tensors;                   // of a golf-gpt unbanked; views into the file or into `transposed`
  std::vector<ByteVector> transposed;  // projections of a GPT-2
  bool banked = false;
  Json config_json = Json::object();  // as found, empty when there is none
  std::string config_path;            // where it was found, for errors
  std::optional<AnyConfig> config;    // set when its family runs
};

// Config: from `config_path` when given, else from the checkpoint itself, else from a sibling config.json.
// A model of another family, or one without a config whose tensors are of neither family, opens with `config` unset.
OpenedCheckpoint open_model_checkpoint(const std::string& path, const std::string& config_path);

// The same without copying weights: the projections of a GPT-2 stay as the file has them.
OpenedCheckpoint open_checkpoint_names(const std::string& path, const std::string& config_path);

// The `config` that the checkpoint would open with; copies no weights.
std::optional<AnyConfig> checkpoint_config(const std::string& path, const std::string& config_path);

// The OpenedCheckpoint's config, or a FormatError that says what the checkpoint is instead.
const AnyConfig& require_runnable(const OpenedCheckpoint& checkpoint);

// The same for what only golf-gpts can do: gradients, and CUDA devices.
const ModelConfig& require_golf(const OpenedCheckpoint& checkpoint);

bool is_artifact(const std::string& path);

// A model in host memory: dequantized, or an artifact whose codes are being decompressed for a CUDA device.
struct LoadedModel {
  AnyConfig config;
  uint64_t file_bytes = 0;
  std::optional<AnyModel> model;
  // Without `model`. Each member uses those above it.
  std::optional<MappedFile> file;
  std::unique_ptr<StoredModel> stored;
  std::unique_ptr<BlockFeed> feed;
};

// A checkpoint or an artifact, to be run on `device`. An artifact takes no config.
LoadedModel load_model(const std::string& path, const std::string& config_path, const Device& device);

// On the device that it was loaded for, once. `loaded` must outlive the result.
std::unique_ptr<LanguageModel> make_language_model(LoadedModel& loaded, const Device& device, int64_t context);

QuantizedModel load_artifact(const std::string& path);

}  // namespace thimble
