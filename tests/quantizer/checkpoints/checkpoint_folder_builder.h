// checkpoint_folder_builder.h: folders of shards as Hugging Face's libraries write them.
#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "quantizer/formats/safetensors.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/json.h"

namespace thimble {

inline std::string shard_name(size_t number, size_t count) {
  return fmt::format("model-{:05}-of-{:05}.safetensors", number, count);
}

// Deals the tensors out to `count` shards, at most as many as there are tensors, and writes them; returns the index.
inline Json write_shards(const std::string& folder, const TensorMap& tensors, size_t count) {
  std::vector<TensorMap> shards(count);
  Json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", Json::object()}};
  size_t dealt = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t shard = dealt++ % count;
    shards[shard].emplace(name, tensor);
    index["weight_map"][name] = shard_name(shard + 1, count);
    index["metadata"]["total_size"] = index["metadata"]["total_size"].get<uint64_t>() + tensor.bytes.size();
  }
  for (size_t shard = 0; shard < count; ++shard)
    write_safetensors(folder + "/" + shard_name(shard + 1, count), shards[shard], {{"format", "pt"}});
  return index;
}

inline void write_index(const std::string& folder, const Json& index) {
  write_file_atomically(folder + "/model.safetensors.index.json", index.dump(2));
}

inline void write_sharded_folder(const std::string& folder, const TensorMap& tensors, size_t count) {
  write_index(folder, write_shards(folder, tensors, count));
}

}  // namespace thimble
