// checkpoint_files.h: which files the path of a checkpoint stands for: a single file, or a folder as Hugging Face's
// libraries write it, or the index of its shards.
//
//   folder/config.json                     the model config
//   folder/model.safetensors               all tensors, or
//   folder/model.safetensors.index.json    in which shard each lies, checkpoint_index.h
//   folder/tokenizer.json                  the tokenizer, where there is one, or tokenizer.model
//   folder/tokenizer_config.json           which of its tokens begin and end a text (special_tokens.h)
//
// Everything else in the folder is ignored: generation_config.json, README.md, weights of other libraries.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "quantizer/formats/checkpoint_index.h"
#include "runtime/base/file.h"

namespace thimble {

inline constexpr const char* kConfigFile = "config.json";

struct CheckpointFiles {
  std::string folder;                // where config.json is looked for; empty for the working folder
  std::vector<std::string> weights;  // paths of the files with tensors: one, or index->shards
  // Set where there are shards.
  std::optional<MappedFile> index_file;
  std::optional<CheckpointIndex> index;
  // Was a folder or an index named, so that what lies beside the tensors belongs to them?
  bool is_folder = false;

  std::string config_path() const;
  // A tokenizer that is read, in the folder of a checkpoint that is one, or the GGUF file itself where it holds one;
  // empty when there is none. FormatErrors for a GGUF file that is damaged.
  std::string tokenizer_path() const;
};

// Throws IoError when `path` cannot be read; FormatErrors for a folder with neither tensors nor index, or with both and
// different tensors by them, for a wrong index, and for shards that are not there. What the files hold is not looked
// at, but for whether a file is an index.
CheckpointFiles find_checkpoint_files(const std::string& path);

// A tokenizer that is read, in a folder, of a checkpoint or not; empty when there is none.
std::string tokenizer_in_folder(const std::string& folder);
// Of the names that such a tokenizer may have: "tokenizer.json, ...".
std::string tokenizer_file_names();

// All files that reading a checkpoint reads, with the config, the tokenizer and its config, where `path` is a folder or
// an index; none where it is a single file or nothing. Throws as find_checkpoint_files().
std::vector<std::string> files_of_folder(const std::string& path);

// The tokenizer of the first of these models that is a folder, or an index, or a GGUF file with one. Without any,
// empty, or a UsageError that asks for --tokenizer where it is `required`. Throws as find_checkpoint_files() too.
std::string tokenizer_of_models(std::span<const std::string> models, bool required);

}  // namespace thimble
