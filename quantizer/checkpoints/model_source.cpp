// model_source.cpp: finds the config of a checkpoint and decides what kind of file a path is.
#include "quantizer/checkpoints/model_source.h"

#include <filesystem>

#include "packer/artifact.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxConfigBytes = 16'000'000;

Json read_config(const std::string& path) {
  const std::string text = read_text_file(path, kMaxConfigBytes);
  refuse_other_kinds(as_bytes_of(text), FileUse::kConfig, path);
  return parse_json(as_bytes_of(text), path);
}

}  // namespace

OpenedCheckpoint::OpenedCheckpoint(const std::string& path, const std::string& config_path)
    : file_(open_checkpoint(path)) {
  if (!config_path.empty() && file_.has_parameters())
    throw UsageError("--config does not apply to '" + path + "': checkpoints of " + std::string(file_.format_name()) +
                     " have their own");
  find_config(config_path);
  family_ = find_family(config_json_, file_.tensors());
  if (!family_ || file_.has_parameters()) {
    parameters_.tensors = file_.tensors();
  } else {
    parameters_ = family_->from_file(file_.tensors(), Contents::kShapes, path);
    has_bytes_ = false;
  }
  if (family_) spec_ = family_->resolve(config_json_, parameters_.tensors, {config_path_, path});
}

void OpenedCheckpoint::find_config(const std::string& given_path) {
  const std::string sibling = (std::filesystem::path(path()).parent_path() / "config.json").string();
  if (!given_path.empty()) {
    config_path_ = given_path;
    config_json_ = read_config(given_path);
  } else if (file_.config()) {
    config_path_ = path() + " (its own config)";
    config_json_ = *file_.config();
  } else if (file_exists(sibling)) {
    config_path_ = sibling;
    config_json_ = read_config(sibling);
  } else {
    config_path_ = path() + " (no config given, none inside, none beside it)";
  }
  if (!config_json_.is_object()) throw FormatError(config_path_, "the model config must be a JSON object");
}

const Spec& OpenedCheckpoint::runnable() const {
  if (spec_) return *spec_;
  throw FormatError(path(), cannot_be_run(config_json_) + "; to quantize it, give its --hessians");
}

const TensorMap& OpenedCheckpoint::parameters() {
  if (!has_bytes_) parameters_ = family_->from_file(file_.tensors(), Contents::kBytes, path());
  has_bytes_ = true;
  return parameters_.tensors;
}

std::shared_ptr<const Weights> OpenedCheckpoint::weights() {
  if (!weights_) weights_ = weights_of(runnable(), parameters());
  return weights_;
}

bool is_artifact(const std::string& path) { return is_kind_for(FileUse::kArtifact, MappedFile(path).bytes()); }

QuantizedModel load_artifact(const std::string& path) { return decode_artifact(MappedFile(path).bytes(), path); }

LoadedModel load_model(OpenedCheckpoint& checkpoint) {
  return {checkpoint.path(), checkpoint.file().file_bytes(), {checkpoint.runnable(), checkpoint.weights()}};
}

LoadedModel load_model(const std::string& path, const std::string& config_path) {
  if (!is_artifact(path)) {
    OpenedCheckpoint opened(path, config_path);
    return load_model(opened);
  }
  if (!config_path.empty())
    throw UsageError("--config applies to checkpoints; '" + path + "' is an artifact with its own");
  return {path, file_size_bytes(path), dequantize_model(load_artifact(path), path)};
}

}  // namespace thimble
