// checkpoint_index.cpp: parser and joiner of checkpoint_index.h.
#include "quantizer/formats/checkpoint_index.h"

#include <fmt/format.h>

#include <filesystem>
#include <regex>
#include <set>

#include "quantizer/console/quoted_name.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file_kind.h"
#include "runtime/base/json.h"

namespace thimble {
namespace {

constexpr const char* kWeightMap = "weight_map";
constexpr std::string_view kShardExtension = ".safetensors";

// A name without a folder: never out of the index's own.
bool is_plain_name(const std::string& name) {
  constexpr std::string_view kSeparators("/\\\0", 3);
  return name.size() > kShardExtension.size() && name.size() <= 255 && name.ends_with(kShardExtension) &&
         name.find_first_of(kSeparators) == std::string::npos;
}

void check_counts(const std::vector<std::string>& shards, const std::string& path) {
  for (const std::string& shard : shards) {
    const auto [number, count] = shard_number(shard);
    if (count != 0 && count != shards.size())
      throw FormatError(path, fmt::format("'{}' names {}, the name of {} says {}", kWeightMap,
                                          counted(shards.size(), "shard"), quoted_name(shard), count));
  }
}

}  // namespace

ShardNumber shard_number(const std::string& path) {
  const std::string stem = std::filesystem::path(path).stem().string();
  std::smatch part;
  // Names from an index may be long, and std::regex recurses: the end decides.
  constexpr size_t kLongestEnd = 48;
  const std::string end = stem.size() > kLongestEnd ? stem.substr(stem.size() - kLongestEnd) : stem;
  if (!std::regex_match(end, part, std::regex(".*-([0-9]{1,18})-of-([0-9]{1,18})"))) return {};
  return {std::stoull(part[1]), std::stoull(part[2])};
}

CheckpointIndex parse_checkpoint_index(Bytes text, const std::string& path) {
  if (text.size() > kMaxIndexBytes)
    throw FormatError(path, fmt::format("{} B, an index may have at most {} B", text.size(), kMaxIndexBytes));
  // What is no JSON at all is told by what it is instead, a Git LFS pointer say.
  const size_t start = as_text(text).find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos || as_text(text)[start] != '{')
    throw FormatError(path, wrong_file_text(text, FileUse::kCheckpointIndex));
  const Json json = parse_json(text, path);
  if (!json.is_object() || !json.contains(kWeightMap))
    throw FormatError(path, fmt::format("is not the index of a checkpoint: no '{}'", kWeightMap));
  const Json& weight_map = json.at(kWeightMap);
  if (!weight_map.is_object() || weight_map.empty())
    throw FormatError(path, fmt::format("'{}' must be a JSON object with a shard for each tensor", kWeightMap));
  CheckpointIndex index;
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : weight_map.items()) {
    const std::string where = path + ": tensor " + quoted_name(tensor);
    if (!shard.is_string()) throw FormatError(where, "its shard is not a text");
    const auto& name = shard.get_ref<const std::string&>();
    if (!is_plain_name(name))
      throw FormatError(where, fmt::format("lies in {}, allowed are names of {} files in the folder of the index",
                                           quoted_name(name), kShardExtension));
    shards.insert(name);
    if (shards.size() > kMostShards)
      throw FormatError(path, fmt::format("more than {} shards, which is the most that are read", kMostShards));
    index.shard_of.emplace(tensor, name);
  }
  index.shards.assign(shards.begin(), shards.end());
  check_counts(index.shards, path);
  return index;
}

TensorMap join_shards(const CheckpointIndex& index, std::vector<TensorMap> shards, const std::string& path) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  TensorMap joined;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string& shard = index.shards.at(i);
    for (auto& [name, tensor] : shards[i]) {
      const auto found = index.shard_of.find(name);
      const bool is_indexed = found != index.shard_of.end();
      if (!is_indexed || found->second != shard)
        throw FormatError((folder / shard).string(),
                          fmt::format("tensor {} lies here, by the index {} it is {}", quoted_name(name), path,
                                      is_indexed ? "in " + quoted_name(found->second) : "nowhere"));
      joined.emplace(name, std::move(tensor));
    }
  }
  for (const auto& [name, shard] : index.shard_of)
    if (!joined.contains(name))
      throw FormatError((folder / shard).string(),
                        fmt::format("tensor {} is missing, which by the index {} lies here", quoted_name(name), path));
  return joined;
}

}  // namespace thimble
