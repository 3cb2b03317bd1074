// model_source.h: opening what a user names on the command line: a checkpoint with its config, or an artifact.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "quantizer/checkpoints/checkpoint.h"
#include "runtime/families/model_weights.h"

namespace thimble {

// A checkpoint, opened and resolved once: its parameters under the names and in the layout of its family, and what the
// family makes of its config.
class OpenedCheckpoint {
 public:
  // Config: from `config_path` when given, else from the checkpoint itself, else from config.json beside it or in its
  // folder. A model of another family, or one without a config whose tensors are of no family, opens without a spec,
  // its tensors as the file names them. A FormatError for one that is quantized already, by its config or tensors.
  // Contents::kShapes: as of open_checkpoint(), for who asks for no values.
  OpenedCheckpoint(const std::string& path, const std::string& config_path, Contents contents = Contents::kBytes);

  const std::string& path() const { return file_->path(); }
  const Checkpoint& file() const { return *file_; }
  const Json& config_json() const { return config_json_; }  // as found, empty when there is none
  const std::string& config_path() const { return config_path_; }
  bool banked() const { return parameters_->banked; }

  // Set when its family runs.
  const std::optional<Spec>& spec() const { return spec_; }
  // The same, or a FormatError that says what the checkpoint is instead.
  const Spec& runnable() const;

  // Names, shapes and dtypes of the parameters; bytes only where the file has them as the family wants them.
  const TensorMap& shapes() const { return parameters_->tensors; }
  // With bytes: views into the file, or into memory where its layout had to be turned, which the first call does.
  const TensorMap& parameters();
  // What of them lies in memory, not in the mapped file: of what was turned so far.
  uint64_t memory_bytes() const;
  // Made by the first call, of matrices where parameters() has them: the weights hold the mapped file, and outlive
  // this. The model must run.
  std::shared_ptr<const Weights> weights();

 private:
  void find_config(const std::string& given_path);
  void read_parameters(Contents contents);

  std::shared_ptr<const Checkpoint> file_;
  Json config_json_ = Json::object();
  std::string config_path_;
  const Family* family_ = nullptr;                   // null: none that runs
  std::shared_ptr<const MappedTensors> parameters_;  // of file_
  bool has_bytes_ = true;
  std::optional<Spec> spec_;
  std::shared_ptr<const Weights> weights_;
};

bool is_artifact(const std::string& path);  // false for a folder
// XXH3-64 of an artifact's file, or of all files of a checkpoint.
uint64_t model_hash(const std::string& path);
QuantizedModel load_artifact(const std::string& path);

// A checkpoint or an artifact that runs, in host memory.
struct LoadedModel {
  std::string path;
  uint64_t file_bytes = 0;
  RunnableModel model;
  double seconds = 0;  // that loading took
};

// An artifact takes no config.
LoadedModel load_model(const std::string& path, const std::string& config_path);
LoadedModel load_model(OpenedCheckpoint& checkpoint);

}  // namespace thimble
