// model_source.cpp: finds the config of a checkpoint and decides what kind of file a path is.
#include "quantizer/checkpoints/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "packer/artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/console/quoted_name.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxConfigBytes = 16'000'000;

Json read_config(const std::string& path) {
  const std::string text = read_text_file(path, kMaxConfigBytes);
  refuse_other_kinds(as_bytes_of(text), FileUse::kConfig, path);
  return parse_json(as_bytes_of(text), path);
}

constexpr const char* kGiveTheOriginal = "quantized checkpoints are not read, give the one that it was made from";

std::string text_of(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', true, Json::error_handler_t::replace);
}

// Checkpoints of FP8, GPTQ, AWQ, bitsandbytes, compressed-tensors, MXFP4: their config says so. Their tensors would
// pass for weights, or for those of a family that is not known.
void refuse_quantized_config(const Json& config, const std::string& path) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto found = config.find(key);
    if (found == config.end() || found->is_null()) continue;
    std::string method;
    if (found->is_object() && found->contains("quant_method"))
      method = fmt::format(", of quant_method {}", quoted_name(text_of(found->at("quant_method"))));
    throw FormatError(path, fmt::format("config key '{}' is there{}: {}", key, method, kGiveTheOriginal));
  }
}

// The same without such a config: codes have names and integer types of their own.
void refuse_packed_tensors(const TensorMap& tensors, const std::string& path) {
  constexpr std::array<std::string_view, 7> kEndings = {".qweight", ".qzeros",    ".weight_packed",   ".absmax",
                                                        ".SCB",     ".quant_map", ".weight_scale_inv"};
  for (const auto& tensor : tensors) {
    const std::string& name = tensor.first;
    if (std::ranges::any_of(kEndings, [&](std::string_view ending) { return name.ends_with(ending); }) ||
        name.find(".quant_state.bitsandbytes") != std::string::npos)
      throw FormatError(path, fmt::format("tensor {} of dtype {} is of packed codes: {}", quoted_name(name),
                                          dtype_name(tensor.second.dtype), kGiveTheOriginal));
  }
}

}  // namespace

OpenedCheckpoint::OpenedCheckpoint(const std::string& path, const std::string& config_path, Contents contents)
    : file_(std::make_shared<const Checkpoint>(open_checkpoint(path, contents))) {
  if (!config_path.empty() && file_->has_parameters())
    throw UsageError("--config does not apply to '" + path + "': checkpoints of " + std::string(file_->format_name()) +
                     " have their own");
  find_config(config_path);
  refuse_quantized_config(config_json_, config_path_);
  refuse_packed_tensors(file_->tensors(), path);
  family_ = find_family(config_json_, file_->tensors());
  if (!family_ || file_->has_parameters())
    parameters_ = std::make_shared<const MappedTensors>(MappedTensors{file_->tensors(), {}, false});
  else
    read_parameters(Contents::kShapes);
  if (family_) spec_ = family_->resolve(config_json_, parameters_->tensors, {config_path_, path});
}

void OpenedCheckpoint::find_config(const std::string& given_path) {
  const std::string sibling = file_->files().config_path();
  if (!given_path.empty()) {
    config_path_ = given_path;
    config_json_ = read_config(given_path);
  } else if (file_->config()) {
    config_path_ = path() + " (its own config)";
    config_json_ = *file_->config();
  } else if (file_exists(sibling)) {
    config_path_ = sibling;
    config_json_ = read_config(sibling);
  } else {
    config_path_ = path() + (file_->files().is_folder ? " (no config given, none in the folder)"
                                                      : " (no config given, none inside, none beside it)");
  }
  if (!config_json_.is_object()) throw FormatError(config_path_, "the model config must be a JSON object");
}

const Spec& OpenedCheckpoint::runnable() const {
  if (spec_) return *spec_;
  throw FormatError(path(), cannot_be_run(config_json_) + "; to quantize it, give its --hessians");
}

void OpenedCheckpoint::read_parameters(Contents contents) {
  parameters_ = std::make_shared<const MappedTensors>(family_->from_file(file_->tensors(), contents, path()));
  has_bytes_ = contents == Contents::kBytes;
}

const TensorMap& OpenedCheckpoint::parameters() {
  if (!has_bytes_) read_parameters(Contents::kBytes);
  return parameters_->tensors;
}

uint64_t OpenedCheckpoint::memory_bytes() const {
  uint64_t bytes = 0;
  for (const ByteVector& storage : parameters_->storage) bytes += storage.size();
  return bytes;
}

std::shared_ptr<const Weights> OpenedCheckpoint::weights() {
  if (weights_) return weights_;
  const TensorMap& tensors = parameters();
  weights_ = weights_of(runnable(), tensors,
                        std::make_shared<const decltype(std::pair(file_, parameters_))>(file_, parameters_));
  return weights_;
}

bool is_artifact(const std::string& path) {
  std::error_code unreadable;
  if (std::filesystem::is_directory(path, unreadable)) return false;
  return is_kind_for(FileUse::kArtifact, MappedFile(path).bytes());
}

uint64_t model_hash(const std::string& path) {
  return is_artifact(path) ? xxh3(MappedFile(path).bytes()) : open_checkpoint(path, Contents::kShapes).content_hash();
}

QuantizedModel load_artifact(const std::string& path) { return decode_artifact(MappedFile(path).bytes(), path); }

LoadedModel load_model(OpenedCheckpoint& checkpoint) {
  const double start = seconds_since_start();
  LoadedModel loaded{checkpoint.path(), checkpoint.file().file_bytes(), {checkpoint.runnable(), checkpoint.weights()}};
  loaded.seconds = seconds_since_start() - start;
  return loaded;
}

LoadedModel load_model(const std::string& path, const std::string& config_path) {
  const double start = seconds_since_start();
  auto load = [&]() -> LoadedModel {
    if (!is_artifact(path)) {
      OpenedCheckpoint opened(path, config_path);
      return load_model(opened);
    }
    if (!config_path.empty())
      throw UsageError("--config applies to checkpoints; '" + path + "' is an artifact with its own");
    return {path, file_size_bytes(path), dequantize_model(load_artifact(path), path)};
  };
  LoadedModel loaded = load();
  loaded.seconds = seconds_since_start() - start;
  return loaded;
}

}  // namespace thimble
