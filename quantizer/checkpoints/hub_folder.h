// hub_folder.h: writes a model as a folder that Hugging Face's library `transformers` loads.
//
//   config.json                      Family::hub_config(), the dtype, and the ids of special tokens where they are
//   known model.safetensors                all tensors; or, where they take more than a shard may,
//   model-00001-of-00003.safetensors, ..., model.safetensors.index.json
//   tokenizer.json and the like      copied, or as a GGUF file's tokenizer says it
//
// Or, where the Python package thimble is installed there too, with the artifact itself in place of its tensors:
//   config.json                      with a "quantization_config" of the method "thimble"
//   model.thmb                       the artifact, byte for byte
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "quantizer/checkpoints/weight_source.h"

namespace thimble {

struct HubFolderOptions {
  DType dtype = DType::kBF16;
  uint64_t shard_bytes = 0;  // of tensors in one file; a tensor that is larger has a shard of its own
  // A file, or a folder whose files of a tokenizer are copied, or a GGUF file with one; empty: the model's folder, or
  // the model itself where it is a GGUF file.
  std::string tokenizer;
};

struct HubFolderReport {
  size_t tensors = 0, shards = 0;
  uint64_t tensor_bytes = 0;
  std::vector<std::string> tokenizer_files;  // names of those that were written
};

// The folder appears whole or not at all, and replaces nothing (AtomicFolder). A UsageError for a family that
// `transformers` has no class of. Tensors are read and written one after the other.
HubFolderReport write_hub_folder(const std::string& path, const WeightSource& source, const HubFolderOptions& options);

// The same for a source that is an artifact, which is copied: `options.dtype` is what its weights become when they are
// loaded, no shards are made. `texts` are further files, by name. `format_version`: of the artifact.
HubFolderReport write_artifact_folder(const std::string& path, const WeightSource& source,
                                      const HubFolderOptions& options, uint32_t format_version,
                                      const std::map<std::string, std::string>& texts);

// Ids of the tokens that begin, end and pad texts, where the config of a model says them: what a family's own config
// leaves out.
void copy_special_tokens(const Json& from, Json& to);

// What is copied from `path`, a file or a folder, into a model's folder: pairs of the path and the name there. An
// IoError when `path` is not there.
std::vector<std::pair<std::string, std::string>> tokenizer_files_at(const std::string& path);

}  // namespace thimble
