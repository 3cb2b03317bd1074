// checkpoint_files.cpp: see checkpoint_files.h.
#include "quantizer/checkpoints/checkpoint_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "eval/text/special_tokens.h"
#include "quantizer/console/quoted_name.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file_kind.h"

namespace thimble {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr std::string_view kIndexExtension = ".index.json";

// Names of tokenizers that Tokenizer::load reads, the first that is there is taken: tokenizer.json knows the tokens
// that were added to a SentencePiece model.
constexpr const char* kTokenizerFiles[] = {"tokenizer.json", "tokenizer.model", "spiece.model",
                                           "sentencepiece.bpe.model"};

std::string in_folder(const std::string& folder, const std::string& name) {
  return (std::filesystem::path(folder) / name).string();
}

bool is_folder(const std::string& path) {
  std::error_code unreadable;
  return std::filesystem::is_directory(path, unreadable);
}

// By its name, or by its first bytes where nothing else can be meant.
bool is_index(const std::string& path) {
  if (path.ends_with(kIndexExtension)) return true;
  return is_kind_for(FileUse::kCheckpointIndex, MappedFile(path).bytes());
}

// " (it has 'consolidated.pth', 'model.gguf')": what may hold weights, up to three.
std::string other_weights(const std::string& folder) {
  std::vector<std::string> found;
  std::error_code unreadable;
  constexpr size_t kMostEntries = 10'000;
  size_t seen = 0;
  for (std::filesystem::directory_iterator entry(folder, unreadable), end;
       !unreadable && entry != end && ++seen < kMostEntries; entry.increment(unreadable)) {
    const std::string name = entry->path().filename().string(), extension = entry->path().extension().string();
    for (const char* weights : {".safetensors", ".bin", ".pt", ".pth", ".gguf"})
      if (extension == weights) found.push_back(quoted_name(name));
  }
  if (found.empty()) return "";
  std::ranges::sort(found);
  constexpr size_t kMostNames = 3;
  const size_t more = found.size() > kMostNames ? found.size() - kMostNames : 0;
  found.resize(found.size() - more);
  return fmt::format("; it has {}{}", fmt::join(found, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

void check_shards(const CheckpointFiles& files) {
  std::vector<std::string> missing;
  for (const std::string& path : files.weights)
    if (!file_exists(path)) missing.push_back(path);
  if (missing.empty()) return;
  const std::string name = std::filesystem::path(missing.front()).filename().string();
  throw FormatError(files.index_file->path(),
                    fmt::format("{} of {} missing in its folder, the first is {}: download the whole folder",
                                counted(missing.size(), "shard"), files.weights.size(), quoted_name(name)));
}

void read_index(const std::string& path, CheckpointFiles& files) {
  files.index_file.emplace(path);
  files.index = parse_checkpoint_index(files.index_file->bytes(), path);
  files.weights.clear();
  for (const std::string& shard : files.index->shards) files.weights.push_back(in_folder(files.folder, shard));
  check_shards(files);
}

}  // namespace

std::string CheckpointFiles::config_path() const { return in_folder(folder, kConfigFile); }

std::string CheckpointFiles::tokenizer_path() const {
  if (!is_folder) return holds_gguf_tokenizer(weights.front()) ? weights.front() : "";
  return tokenizer_in_folder(folder);
}

std::string tokenizer_in_folder(const std::string& folder) {
  for (const char* name : kTokenizerFiles)
    if (const std::string path = in_folder(folder, name); file_exists(path)) return path;
  return "";
}

std::string tokenizer_file_names() { return fmt::format("{}", fmt::join(kTokenizerFiles, ", ")); }

CheckpointFiles find_checkpoint_files(const std::string& path) {
  CheckpointFiles files;
  if (!is_folder(path)) {
    files.folder = std::filesystem::path(path).parent_path().string();
    files.weights = {path};
    files.is_folder = is_index(path);
    if (files.is_folder) read_index(path, files);
    return files;
  }
  files.folder = path;
  files.is_folder = true;
  const std::string single = in_folder(path, kSingleFile), index = in_folder(path, kIndexFile);
  const bool has_single = file_exists(single), has_index = file_exists(index);
  if (!has_single && !has_index)
    throw FormatError(
        path, fmt::format("is a folder without '{}' and without '{}'{}", kSingleFile, kIndexFile, other_weights(path)));
  files.weights = {single};
  if (has_index) read_index(index, files);
  if (has_single && has_index && files.weights != std::vector{single})
    throw FormatError(path, fmt::format("is a folder with '{}' and with shards of '{}', which may differ: give one of "
                                        "the two files",
                                        kSingleFile, kIndexFile));
  return files;
}

std::vector<std::string> files_of_folder(const std::string& path) {
  std::error_code unreadable;
  // What is no file ends where it is opened.
  if (!is_folder(path) && !std::filesystem::is_regular_file(path, unreadable)) return {};
  const CheckpointFiles files = find_checkpoint_files(path);
  if (!files.is_folder) return {};
  std::vector<std::string> paths = files.weights;
  if (files.index_file) paths.push_back(files.index_file->path());
  const std::string tokenizer = files.tokenizer_path();
  for (const std::string& beside : {files.config_path(), tokenizer, tokenizer_config_beside(tokenizer)})
    if (!beside.empty() && file_exists(beside)) paths.push_back(beside);
  return paths;
}

std::string tokenizer_of_models(std::span<const std::string> models, bool required) {
  std::error_code unreadable;
  std::string why;  // of the first that could have one
  for (const std::string& model : models) {
    if (!is_folder(model) && !std::filesystem::is_regular_file(model, unreadable)) continue;
    const CheckpointFiles files = find_checkpoint_files(model);
    if (const std::string path = files.tokenizer_path(); !path.empty()) return path;
    if (!why.empty()) continue;
    if (files.is_folder)
      why = fmt::format(": of the tokenizers that are read, '{}' has none ({})", files.folder, tokenizer_file_names());
    else if (const auto trouble = unknown_gguf_tokenizer(model))
      why = fmt::format(": '{}' {}", model, *trouble);
  }
  if (!required) return "";
  throw UsageError("--tokenizer is required" + why);
}

}  // namespace thimble
