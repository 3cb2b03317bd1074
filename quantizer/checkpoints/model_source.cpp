// model_source.cpp: finds the config of a checkpoint and decides what kind of file a path is.
#include "quantizer/checkpoints/model_source.h"

#include <algorithm>
#include <filesystem>

#include "packer/artifact.h"
#include "packer/layout/format.h"
#include "quantizer/checkpoints/gpt2_checkpoint.h"
#include "runtime/base/file.h"
#include "runtime/base/file_kind.h"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

constexpr uint64_t kMaxConfigBytes = 16'000'000;

Json read_config(const std::string& path) {
  const std::string text = read_text_file(path, kMaxConfigBytes);
  refuse_other_kinds(as_bytes_of(text), FileUse::kConfig, path);
  return parse_json(as_bytes_of(text), path);
}

void find_config(const std::string& given_path, OpenedCheckpoint& opened) {
  const std::string& path = opened.file.path();
  std::string sibling = (std::filesystem::path(path).parent_path() / "config.json").string();
  if (!given_path.empty()) {
    opened.config_path = given_path;
    opened.config_json = read_config(given_path);
  } else if (opened.file.config()) {
    opened.config_path = path + " (its own config)";
    opened.config_json = *opened.file.config();
  } else if (file_exists(sibling)) {
    opened.config_path = sibling;
    opened.config_json = read_config(sibling);
  } else {
    opened.config_path = path + " (no config given, none inside, none beside it)";
  }
  if (!opened.config_json.is_object()) throw FormatError(opened.config_path, "the model config must be a JSON object");
}

bool has_golf_tensors(const TensorMap& tensors) {
  return tensors.contains("tok_emb.weight") && tensors.contains(LayerNames(0).query);
}

// Hugging Face stores projections as (in, out), llm.c as (out, in).
bool stores_transposed(const OpenedCheckpoint& opened) { return opened.file.format_name() != kLlmcFormat; }

// Says what family the config names and which ones run. Hugging Face calls the key "model_type".
std::string cannot_be_run(const Json& config) {
  Json family = config.value("architecture", config.value("model_type", Json("unknown")));
  return "model family " + family.dump() + " cannot be run, allowed are " + kRunnableFamilies;
}

}  // namespace

OpenedCheckpoint open_checkpoint_names(const std::string& path, const std::string& config_path) {
  OpenedCheckpoint opened{open_checkpoint(path), {}, {}, false, Json::object(), "", std::nullopt};
  if (!config_path.empty() && opened.file.format_name() == kLlmcFormat)
    throw UsageError("--config does not apply to '" + path + "': checkpoints of llm.c have their own");
  find_config(config_path, opened);
  const TensorMap& found = opened.file.tensors();
  if (is_gpt2_checkpoint(opened.config_json, found)) {
    opened.tensors = with_gpt2_names(found, path);
    opened.config =
        resolve_gpt2_config(opened.config_json, opened.config_path,
                            stores_transposed(opened) ? with_transposed_shapes(opened.tensors) : opened.tensors, path);
    return opened;
  }
  opened.banked = has_banks(found);
  opened.tensors = unbank(found, path);
  // torch's AveragedModel keeps a counter beside the weights; it is not one of them.
  if (has_golf_tensors(opened.tensors)) opened.tensors.erase("n_averaged");
  if (is_golf_config(opened.config_json) || has_golf_tensors(opened.tensors))
    opened.config = resolve_model_config(opened.config_json, opened.config_path, opened.tensors, path);
  return opened;
}

OpenedCheckpoint open_model_checkpoint(const std::string& path, const std::string& config_path) {
  OpenedCheckpoint opened = open_checkpoint_names(path, config_path);
  if (opened.config && std::holds_alternative<Gpt2Config>(*opened.config) && stores_transposed(opened))
    opened.tensors = with_transposed_projections(opened.tensors, opened.transposed);
  return opened;
}

std::optional<AnyConfig> checkpoint_config(const std::string& path, const std::string& config_path) {
  return open_checkpoint_names(path, config_path).config;
}

const AnyConfig& require_runnable(const OpenedCheckpoint& checkpoint) {
  if (checkpoint.config) return *checkpoint.config;
  throw FormatError(checkpoint.file.path(),
                    cannot_be_run(checkpoint.config_json) + "; to quantize it, give its --hessians");
}

const ModelConfig& require_golf(const OpenedCheckpoint& checkpoint) {
  if (const auto* golf = std::get_if<ModelConfig>(&require_runnable(checkpoint))) return *golf;
  throw FormatError(checkpoint.file.path(), "is a GPT-2 model; gradients are there for golf-gpt models alone");
}

bool is_artifact(const std::string& path) {
  MappedFile file(path);
  Bytes bytes = file.bytes();
  Bytes magic = std::as_bytes(std::span(kMagic));
  return bytes.size() >= magic.size() && std::ranges::equal(magic, bytes.first(magic.size()));
}

QuantizedModel load_artifact(const std::string& path) {
  MappedFile file(path);
  return decode_artifact(file.bytes(), path);
}

namespace {

// Of an artifact; one that cannot be run is a FormatError.
AnyConfig runnable_config(const QuantizedModel& quantized, const std::string& path) {
  Json config = parse_json(as_bytes_of(quantized.config_json), path);
  if (!is_runnable_config(config)) throw FormatError(path, cannot_be_run(config));
  return quantized_any_config(quantized, path);
}

}  // namespace

LoadedModel load_model(const std::string& path, const std::string& config_path, const Device& device) {
  LoadedModel loaded;
  loaded.file_bytes = file_size_bytes(path);
  if (!is_artifact(path)) {
    OpenedCheckpoint opened = open_model_checkpoint(path, config_path);
    loaded.config = require_runnable(opened);
    loaded.model = bind_any_model(loaded.config, opened.tensors);
    return loaded;
  }
  if (!config_path.empty())
    throw UsageError("--config applies to checkpoints; '" + path + "' is an artifact with its own");
  if (has_fused_forward(device)) {
    loaded.file.emplace(path);
    loaded.stored = open_stored_artifact(loaded.file->bytes(), path);
    loaded.config = runnable_config(loaded.stored->model(), path);
    // What is not unpacked on a device is decoded on the host, and so is what runs through a Backend.
    if (has_host_codes(loaded.stored->model()) || !has_fused_forward(loaded.config, device)) loaded.stored.reset();
  }
  if (loaded.stored) {
    loaded.feed = std::make_unique<BlockFeed>(*loaded.stored);
  } else {
    QuantizedModel quantized = load_artifact(path);
    loaded.config = runnable_config(quantized, path);
    loaded.model = dequantize_any_model(quantized, path);
  }
  return loaded;
}

std::unique_ptr<LanguageModel> make_language_model(LoadedModel& loaded, const Device& device, int64_t context) {
  if (loaded.model) return make_language_model(*loaded.model, device, context);
  std::unique_ptr<LanguageModel> made = make_language_model(*loaded.stored, *loaded.feed, device, context);
  loaded.feed.reset();
  return made;
}

}  // namespace thimble
