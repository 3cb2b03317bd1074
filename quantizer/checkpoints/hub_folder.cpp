// hub_folder.cpp: see hub_folder.h.
#include "quantizer/checkpoints/hub_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "eval/tokenizers/tokenizer_json.h"
#include "quantizer/checkpoints/checkpoint_files.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/checked.h"
#include "runtime/base/file_kind.h"

namespace thimble {
namespace {

// Of a folder with a tokenizer: what `transformers` looks for when it loads it, and how to generate with it.
constexpr const char* kCopiedFiles[] = {
    "tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",     "merges.txt",      "chat_template.jinja",   "chat_template.json",      "generation_config.json"};
constexpr uint64_t kMaxTokenizerFileBytes = 64 << 20;
constexpr const char* kArtifactFile = "model.thmb";
constexpr const char* kSpecialTokens[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

// One file of tensors.
struct Shard {
  TensorMap shapes;
  std::map<std::string, std::string> parameters;  // by the tensor's name
  uint64_t bytes = 0;
};

std::pair<std::string, Tensor> in_file(const Spec& spec, const std::string& parameter, Tensor tensor) {
  std::map<std::string, Tensor> stored = spec.family->to_file(spec, {{parameter, std::move(tensor)}}, false);
  return {stored.begin()->first, std::move(stored.begin()->second)};
}

// Tensors in the network's order, as many in each shard as fit.
std::vector<Shard> plan_shards(const Spec& spec, DType dtype, uint64_t shard_bytes) {
  std::vector<Shard> shards(1);
  for (const auto& [parameter, shape, role] : spec.network->parameters) {
    const auto [name, tensor] = in_file(spec, parameter, {dtype, shape, {}});
    const uint64_t bytes = tensor_bytes_or_throw(dtype, tensor.shape, name);
    if (shards.back().bytes > 0 && bytes > shard_bytes - std::min(shard_bytes, shards.back().bytes))
      shards.emplace_back();
    shards.back().shapes[name] = {dtype, tensor.shape, {}};
    shards.back().parameters[name] = parameter;
    shards.back().bytes = add_or_throw(shards.back().bytes, bytes, name);
  }
  return shards;
}

std::string torch_name(DType dtype) {
  return dtype == DType::kBF16 ? "bfloat16" : dtype == DType::kF16 ? "float16" : "float32";
}

Json config_of(const WeightSource& source, const HubFolderOptions& options) {
  Json config = source.spec().family->hub_config(source.spec());
  if (config.is_null())
    throw UsageError(
        fmt::format("{}: Hugging Face's library knows no '{}' models", source.path(), source.spec().family->name()));
  config["torch_dtype"] = torch_name(options.dtype);
  config["dtype"] = torch_name(options.dtype);  // as releases from 4.56 spell it
  copy_special_tokens(source.given_config(), config);
  return config;
}

// Of `named`, or else of the model's folder or GGUF file, by name.
std::map<std::string, std::string> tokenizer_texts(const WeightSource& source, const std::string& named) {
  const std::string& folder = named.empty() ? source.folder() : named;
  const std::string& from = folder.empty() ? source.path() : folder;
  if (std::filesystem::is_regular_file(from))
    if (std::map<std::string, std::string> held = gguf_tokenizer_files(from); !held.empty()) return held;
  std::map<std::string, std::string> texts;
  if (folder.empty()) return texts;
  for (const auto& [path, name] : tokenizer_files_at(folder))
    texts[name] = read_text_file(path, kMaxTokenizerFileBytes);
  return texts;
}

void write_texts(const AtomicFolder& folder, const std::map<std::string, std::string>& texts) {
  for (const auto& [name, text] : texts) write_file_atomically(folder.file(name), text);
}

std::vector<std::string> names_of(const std::map<std::string, std::string>& texts) {
  std::vector<std::string> names;
  for (const auto& [name, text] : texts) names.push_back(name);
  return names;
}

}  // namespace

void copy_special_tokens(const Json& from, Json& to) {
  for (const char* key : kSpecialTokens)
    if (from.contains(key) && (from.at(key).is_number_integer() || from.at(key).is_array())) to[key] = from.at(key);
}

std::vector<std::pair<std::string, std::string>> tokenizer_files_at(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> files;
  std::error_code unreadable;
  if (!std::filesystem::is_directory(path, unreadable)) {
    const MappedFile file(path);
    refuse_other_kinds(file.bytes(), FileUse::kTokenizer, path);
    return {{path, holds_tokenizer_json(file.bytes()) ? "tokenizer.json" : "tokenizer.model"}};
  }
  for (const char* name : kCopiedFiles)
    if (const std::string file = (std::filesystem::path(path) / name).string(); file_exists(file))
      files.emplace_back(file, name);
  return files;
}

HubFolderReport write_hub_folder(const std::string& path, const WeightSource& source, const HubFolderOptions& options) {
  const Json config = config_of(source, options);
  const std::map<std::string, std::string> tokenizer = tokenizer_texts(source, options.tokenizer);
  const std::vector<Shard> shards = plan_shards(source.spec(), options.dtype, options.shard_bytes);

  AtomicFolder folder(path);
  HubFolderReport report;
  report.shards = shards.size();
  Json weight_map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file = shards.size() == 1 ? std::string("model.safetensors")
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder.file(file), shards[i].shapes, {{"format", "pt"}}, [&](const std::string& name) {
      const std::string& parameter = shards[i].parameters.at(name);
      return in_file(source.spec(), parameter, source.parameter(parameter, options.dtype)).second.bytes;
    });
    for (const auto& [name, shape] : shards[i].shapes) weight_map[name] = file;
    report.tensors += shards[i].shapes.size();
    report.tensor_bytes += shards[i].bytes;
  }
  if (shards.size() > 1) {
    const Json index = {{"metadata", {{"total_size", report.tensor_bytes}}}, {"weight_map", weight_map}};
    write_file_atomically(folder.file("model.safetensors.index.json"), index.dump(2) + "\n");
  }
  write_texts(folder, tokenizer);
  report.tokenizer_files = names_of(tokenizer);
  write_file_atomically(folder.file(kConfigFile), config.dump(2) + "\n");
  folder.commit();
  return report;
}

HubFolderReport write_artifact_folder(const std::string& path, const WeightSource& source,
                                      const HubFolderOptions& options, uint32_t format_version,
                                      const std::map<std::string, std::string>& texts) {
  Json config = config_of(source, options);
  config["quantization_config"] = {{"quant_method", "thimble"}, {"format_version", format_version}};
  const std::map<std::string, std::string> tokenizer = tokenizer_texts(source, options.tokenizer);
  const MappedFile artifact(source.path());
  AtomicFolder folder(path);
  write_file_atomically(folder.file(kArtifactFile), artifact.bytes());
  write_texts(folder, texts);
  write_texts(folder, tokenizer);
  write_file_atomically(folder.file(kConfigFile), config.dump(2) + "\n");
  folder.commit();
  return {source.spec().network->parameters.size(), 0, artifact.bytes().size(), names_of(tokenizer)};
}

}  // namespace thimble
