// weight_source.h: the parameters of a checkpoint or an artifact, one after the other, for writers of other formats.
#pragma once

#include <optional>
#include <string>

#include "quantizer/checkpoints/model_source.h"

namespace thimble {

class WeightSource {
 public:
  // A FormatError for a model of a family that cannot be run. `config_path` as of OpenedCheckpoint; a UsageError for an
  // artifact, which has its own.
  WeightSource(const std::string& path, const std::string& config_path);

  const std::string& path() const { return path_; }
  const Spec& spec() const { return spec_; }
  const Json& given_config() const { return given_config_; }  // as it was found, not resolved
  // The folder whose tokenizer belongs to the model; empty where the model is a single file.
  const std::string& folder() const { return folder_; }

  // In the order of Network::parameters. A FormatError names a finite value that `dtype` cannot hold.
  Tensor parameter(const std::string& name, DType dtype) const;
  std::vector<float> values(const std::string& name) const;

 private:
  std::string path_, folder_;
  std::optional<OpenedCheckpoint> checkpoint_;  // else an artifact
  QuantizedModel artifact_;
  Json given_config_;
  Spec spec_;
};

}  // namespace thimble
