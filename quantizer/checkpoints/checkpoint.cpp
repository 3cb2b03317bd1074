// checkpoint.cpp: recognises the format and unifies the names for checkpoint.h.
#include "quantizer/checkpoints/checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <regex>

#include "quantizer/checkpoints/llmc_checkpoint.h"
#include "quantizer/checkpoints/safetensors.h"
#include "quantizer/checkpoints/torch_checkpoint.h"
#include "quantizer/console/quoted_name.h"
#include "runtime/base/error.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

constexpr std::string_view kWrapperPrefixes[] = {"_orig_mod.", "module."};
constexpr size_t kSafetensorsHeaderAt = 8;

bool looks_like_safetensors(Bytes file) {
  return file.size() > kSafetensorsHeaderAt && file[kSafetensorsHeaderAt] == std::byte{'{'};
}

// Hugging Face names the parts of a checkpoint model-00001-of-00003.safetensors. One alone would pass for a small model
// of an unknown family.
void refuse_part_of_several(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  std::smatch part;
  if (!std::regex_match(stem, part, std::regex(".*-([0-9]{1,18})-of-([0-9]{1,18})"))) return;
  const uint64_t number = std::stoull(part[1]), count = std::stoull(part[2]);
  if (count < 2) return;
  throw FormatError(path,
                    fmt::format("is part {} of {} of a checkpoint, by its name: only whole checkpoints are read, so "
                                "save the model again as one file (or rename the file, if it is whole)",
                                number, count));
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
  refuse_part_of_several(path);
  Bytes file = checkpoint.file_.bytes();
  refuse_other_kinds(file, FileUse::kCheckpoint, path);
  CheckpointContents& contents = checkpoint.contents_;
  if (looks_like_llmc(file)) {
    checkpoint.format_name_ = kLlmcFormat;
    contents = read_llmc_checkpoint(file, path);
  } else if (looks_like_safetensors(file)) {
    checkpoint.format_name_ = "safetensors";
    contents = read_safetensors(file, path);
    contents.config = config_of(contents.metadata, path);
  } else if (as_text(file).starts_with("PK") || looks_like_legacy_torch(file)) {
    checkpoint.format_name_ = "torch";
    contents = read_torch_checkpoint(file, path);
  } else {
    throw FormatError(path, wrong_file_text(file, FileUse::kCheckpoint));
  }
  contents.tensors = strip_names(std::move(contents.tensors), path);
  return checkpoint;
}

}  // namespace thimble
