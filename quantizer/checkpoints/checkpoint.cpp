// checkpoint.cpp: recognises the format and unifies the names for checkpoint.h.
#include "quantizer/checkpoints/checkpoint.h"

#include <fmt/format.h>

#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/gguf.h"
#include "quantizer/formats/gguf_checkpoint.h"
#include "quantizer/formats/llmc_checkpoint.h"
#include "quantizer/formats/safetensors.h"
#include "quantizer/formats/torch_checkpoint.h"
#include "runtime/base/error.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

constexpr std::string_view kWrapperPrefixes[] = {"_orig_mod.", "module."};
constexpr std::string_view kSafetensorsFormat = "safetensors";
constexpr size_t kSafetensorsHeaderAt = 8;

bool looks_like_safetensors(Bytes file) {
  return file.size() > kSafetensorsHeaderAt && file[kSafetensorsHeaderAt] == std::byte{'{'};
}

// Hugging Face names the parts of a checkpoint model-00001-of-00003.safetensors. One alone would pass for a small model
// of an unknown family.
void refuse_part_of_several(const std::string& path) {
  const auto [number, count] = shard_number(path);
  if (count < 2) return;
  throw FormatError(path,
                    fmt::format("is part {} of {} of a checkpoint, by its name: give the folder with all of them and "
                                "their model.safetensors.index.json (or rename it, if it is the whole model in one "
                                "file)",
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

Checkpoint::Checkpoint(const std::string& path) : path_(path), files_(find_checkpoint_files(path)) {
  for (const std::string& file : files_.weights) mapped_.emplace_back(file);
}

uint64_t Checkpoint::file_bytes() const {
  uint64_t bytes = 0;
  for (const MappedFile& file : mapped_) bytes += file.bytes().size();
  return bytes;
}

uint64_t Checkpoint::content_hash() const {
  if (!files_.index) return xxh3(mapped_.front().bytes());
  Hasher hasher;
  hasher.add(as_text(files_.index_file->bytes()));
  for (const MappedFile& file : mapped_) hasher.add(xxh3(file.bytes()));
  return hasher.digest();
}

void Checkpoint::read_single(Contents contents) {
  const std::string& path = mapped_.front().path();
  if (!files_.is_folder) refuse_part_of_several(path);
  Bytes file = mapped_.front().bytes();
  refuse_other_kinds(file, FileUse::kCheckpoint, path);
  if (looks_like_llmc(file)) {
    format_name_ = kLlmcFormat;
    contents_ = read_llmc_checkpoint(file, path);
  } else if (looks_like_gguf(file)) {
    format_name_ = "gguf";
    contents_ = read_gguf_checkpoint(file, path, contents);
  } else if (looks_like_safetensors(file)) {
    format_name_ = kSafetensorsFormat;
    contents_ = read_safetensors(file, path);
    contents_.config = config_of(contents_.metadata, path);
  } else if (as_text(file).starts_with("PK") || looks_like_legacy_torch(file)) {
    format_name_ = "torch";
    contents_ = read_torch_checkpoint(file, path);
  } else {
    throw FormatError(path, wrong_file_text(file, FileUse::kCheckpoint));
  }
}

// Their metadata tells nothing of the model: the libraries that split checkpoints write the format alone.
void Checkpoint::read_shards() {
  format_name_ = kSafetensorsFormat;
  std::vector<TensorMap> shards;
  for (const MappedFile& file : mapped_) {
    refuse_other_kinds(file.bytes(), FileUse::kShard, file.path());
    if (!looks_like_safetensors(file.bytes()))
      throw FormatError(file.path(), "is not a safetensors file, which the shards of a checkpoint must be");
    shards.push_back(read_safetensors(file.bytes(), file.path()).tensors);
  }
  contents_.tensors = join_shards(*files_.index, std::move(shards), files_.index_file->path());
}

Checkpoint open_checkpoint(const std::string& path, Contents contents) {
  Checkpoint checkpoint(path);
  if (checkpoint.files_.index)
    checkpoint.read_shards();
  else
    checkpoint.read_single(contents);
  checkpoint.contents_.tensors = strip_names(std::move(checkpoint.contents_.tensors), path);
  return checkpoint;
}

}  // namespace thimble
