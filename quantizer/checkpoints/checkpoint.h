// checkpoint.h: opens a trained checkpoint of any format and gives its tensors by name.
//
// A checkpoint is a file, whose format is recognised by content and never by its extension: .safetensors, the zip files
// of torch.save, llm.c's .bin, or llama.cpp's .gguf. Or it is a folder with one .safetensors file or shards of them, or
// the shards' index (checkpoint_files.h). Wrappers put their own prefixes before every name: torch.compile
// `_orig_mod.`, DistributedDataParallel and AveragedModel `module.`. Each name is stripped of all of them, in any
// order; two names that become equal are a FormatError. (Per name and not all-or-none: AveragedModel adds an unprefixed
// `n_averaged` beside the weights.)
//
// Non-goals: config.json beside the checkpoint or in its folder.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "quantizer/checkpoints/checkpoint_files.h"
#include "quantizer/formats/checkpoint_contents.h"
#include "runtime/base/file.h"
#include "runtime/base/json.h"
#include "runtime/families/family.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

constexpr std::string_view kLlmcFormat = "llm.c";

// Move-only; the views stay valid when it is moved and end with it.
class Checkpoint {
 public:
  const std::string& path() const { return path_; }              // as it was named
  const CheckpointFiles& files() const { return files_; }        // what lies there
  uint64_t file_bytes() const;                                   // of the files with tensors together
  std::string_view format_name() const { return format_name_; }  // "safetensors", "torch", "llm.c", "gguf"
  // Are the tensors already under the names and in the layout of their family's parameters, with a config?
  bool has_parameters() const { return format_name_ == kLlmcFormat; }

  const TensorMap& tensors() const { return contents_.tensors; }  // without wrapper prefixes
  // The __metadata__ of a single safetensors file; empty for others and for shards.
  const std::map<std::string, std::string>& metadata() const { return contents_.metadata; }
  // The model config stored in the checkpoint, a JSON object: the metadata text "config" of a safetensors file, or the
  // dict that read_torch_checkpoint describes, or what the header of an llm.c file or the metadata of a GGUF file says.
  const std::optional<Json>& config() const { return contents_.config; }

  // XXH3-64 of all the file's bytes; of shards, of the index and of each shard's. Reads the files at each call.
  uint64_t content_hash() const;

 private:
  friend Checkpoint open_checkpoint(const std::string& path, Contents contents);
  explicit Checkpoint(const std::string& path);
  void read_single(Contents contents);
  void read_shards();

  std::string path_;
  CheckpointFiles files_;
  std::vector<MappedFile> mapped_;  // in the order of files_.weights
  std::string_view format_name_;
  CheckpointContents contents_;
};

// Throws IoError when the file cannot be read and FormatError when it is not a valid checkpoint. Contents::kShapes:
// tensors that a GGUF file has otherwise, quantized for most, have no bytes (gguf_checkpoint.h).
Checkpoint open_checkpoint(const std::string& path, Contents contents = Contents::kBytes);

// `name` without wrapper prefixes.
std::string_view strip_wrapper_prefixes(std::string_view name);

}  // namespace thimble
