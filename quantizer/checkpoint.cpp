// checkpoint.cpp: recognises the format and unifies the names for checkpoint.h.
#include "quantizer/checkpoint.h"

#include "quantizer/llmc_checkpoint.h"
#include "quantizer/quoted_name.h"
#include "quantizer/safetensors.h"
#include "quantizer/torch_checkpoint.h"
#include "runtime/error.h"
#include "runtime/hash.h"

namespace thimble {
namespace {

constexpr std::string_view kWrapperPrefixes[] = {"_orig_mod.", "module."};
constexpr size_t kSafetensorsHeaderAt = 8;

bool looks_like_safetensors(Bytes file) {
  return file.size() > kSafetensorsHeaderAt && file[kSafetensorsHeaderAt] == std::byte{'{'};
}

TensorMap strip_names(TensorMap tensors, const std::string& path) {
  TensorMap stripped;
  std::map<std::string, std::string> originals;
  for (auto& [name, tensor] : tensors) {
    std::string short_name(strip_wrapper_prefixes(name));
    auto [original, inserted] = originals.try_emplace(short_name, name);
    if (!inserted)
      throw FormatError(path, "tensors " + quoted_name(original->second) + " and " + quoted_name(name) + " are both " +
                                  quoted_name(short_name) + " without wrapper prefixes");
    stripped.emplace(std::move(short_name), std::move(tensor));
  }
  return stripped;
}

// The metadata text "config" when it is a JSON object.
std::optional<Json> config_of(const std::map<std::string, std::string>& metadata, const std::string& path) {
  auto found = metadata.find("config");
  if (found == metadata.end() || !Json::accept(found->second)) return std::nullopt;
  Json config = parse_json(as_bytes_of(found->second), path + ": metadata 'config'");
  return config.is_object() ? std::optional(std::move(config)) : std::nullopt;
}

}  // namespace

std::string_view strip_wrapper_prefixes(std::string_view name) {
  for (bool stripped = true; stripped;) {
    stripped = false;
    for (std::string_view prefix : kWrapperPrefixes) {
      if (!name.starts_with(prefix)) continue;
      name.remove_prefix(prefix.size());
      stripped = true;
    }
  }
  return name;
}

uint64_t Checkpoint::content_hash() const { return xxh3(file_.bytes()); }

Checkpoint open_checkpoint(const std::string& path) {
  Checkpoint checkpoint(path);
  Bytes file = checkpoint.file_.bytes();
  TensorMap tensors;
  if (looks_like_llmc(file)) {
    LlmcContents contents = read_llmc_checkpoint(file, path);
    checkpoint.format_name_ = kLlmcFormat;
    tensors = std::move(contents.tensors);
    checkpoint.config_ = std::move(contents.config);
  } else if (looks_like_safetensors(file)) {
    SafetensorsContents contents = read_safetensors(file, path);
    checkpoint.format_name_ = "safetensors";
    tensors = std::move(contents.tensors);
    checkpoint.metadata_ = std::move(contents.metadata);
    checkpoint.config_ = config_of(checkpoint.metadata_, path);
  } else if (as_text(file).starts_with("PK") || looks_like_legacy_torch(file)) {
    TorchContents contents = read_torch_checkpoint(file, path);
    checkpoint.format_name_ = "torch";
    tensors = std::move(contents.tensors);
    checkpoint.gathered_ = std::move(contents.gathered);
    checkpoint.config_ = std::move(contents.config);
  } else {
    throw FormatError(path, "is neither a .safetensors file nor a zip file of torch.save nor a checkpoint of llm.c");
  }
  checkpoint.tensors_ = strip_names(std::move(tensors), path);
  return checkpoint;
}

}  // namespace thimble
