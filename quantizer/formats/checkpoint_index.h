// checkpoint_index.h: model.safetensors.index.json, which says in which shard of a folder each tensor lies.
//
//   {"metadata": {...}, "weight_map": {"<tensor>": "<shard>.safetensors", ...}}
//
// A shard is a file of the index's own folder, which may be a link to elsewhere. `metadata` and other keys are ignored,
// as transformers does: its total_size is of another dtype, or counts tied weights twice, in too many checkpoints.
//
// Non-goals: indices of pytorch_model.bin, shards in other folders.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/tensor/tensor.h"

namespace thimble {

constexpr uint64_t kMaxIndexBytes = 16'000'000;  // as a safetensors header: more than 100,000 tensors
constexpr size_t kMostShards = 4096;             // each is mapped; Linux maps 65,530 areas in a process

struct CheckpointIndex {
  std::map<std::string, std::string> shard_of;  // by the name of the tensor
  std::vector<std::string> shards;              // names of files, ascending, each once; never empty
};

// FormatErrors name `path`, the tensor and the shard: what is no index, no tensors, more than kMostShards, shards that
// are not plain names of .safetensors files, and names "...-of-00003" of another number of shards.
CheckpointIndex parse_checkpoint_index(Bytes text, const std::string& path);

// The tensors of all shards, `shards[i]` being what the header of index.shards[i] has. FormatErrors for a tensor that
// lies in a shard without the index saying so, and for one that the index promises and no shard has. Views stay those
// of the shards. `path` is that of the index.
TensorMap join_shards(const CheckpointIndex& index, std::vector<TensorMap> shards, const std::string& path);

// The number and the count of a shard by its name, "model-00001-of-00003.safetensors": {1, 3}; {0, 0} for other names.
struct ShardNumber {
  uint64_t number = 0, count = 0;
};
ShardNumber shard_number(const std::string& path);

}  // namespace thimble
