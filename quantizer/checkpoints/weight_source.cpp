// weight_source.cpp: see weight_source.h.
#include "quantizer/checkpoints/weight_source.h"

#include <algorithm>

#include "quantizer/console/quoted_name.h"

namespace thimble {

WeightSource::WeightSource(const std::string& path, const std::string& config_path) : path_(path) {
  if (is_artifact(path)) {
    if (!config_path.empty())
      throw UsageError("--config applies to checkpoints; '" + path + "' is an artifact with its own");
    artifact_ = load_artifact(path);
    given_config_ = parse_json(as_bytes_of(artifact_.config_json), path);
    spec_ = quantized_spec(artifact_, path);
    return;
  }
  checkpoint_.emplace(path, config_path);
  spec_ = checkpoint_->runnable();
  given_config_ = checkpoint_->config_json();
  if (checkpoint_->file().files().is_folder) folder_ = checkpoint_->file().files().folder;
  checkpoint_->parameters();  // with bytes, before threads ask for them
}

std::vector<float> WeightSource::values(const std::string& name) const {
  if (checkpoint_) return to_float32(checkpoint_->shapes().at(name));
  const auto found = std::ranges::lower_bound(artifact_.tensors, name, {}, &QuantizedTensor::name);
  if (found == artifact_.tensors.end() || found->name != name)
    throw FormatError(path_, "tensor " + quoted_name(name) + " is missing");
  return dequantize(*found);
}

Tensor WeightSource::parameter(const std::string& name, DType dtype) const {
  const auto found = std::ranges::find(spec_.network->parameters, name, &Parameter::name);
  if (checkpoint_)
    if (const TensorView& stored = checkpoint_->shapes().at(name); stored.dtype == dtype)
      return {dtype, found->shape, ByteVector(stored.bytes.begin(), stored.bytes.end())};
  return {dtype, found->shape, narrowed(values(name), dtype, name, path_)};
}

}  // namespace thimble
