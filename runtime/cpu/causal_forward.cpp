// causal_forward.cpp: the key/value cache and batches of causal_forward.h.
#include "runtime/cpu/causal_forward.h"

namespace thimble {

KeyValueCache::KeyValueCache(Backend& backend, const CacheShape& shape, int64_t sequences, int64_t capacity,
                             bool shared_layers)
    : capacity_(capacity) {
  smear_state_.resize(backend, sequences, shape.state_width);
  const auto copies = static_cast<size_t>(shared_layers ? 1 : shape.layers);
  for (std::vector<BackendMatrix>* half : {&keys_, &values_}) {
    half->resize(copies);
    for (BackendMatrix& layer : *half) layer.resize(backend, sequences * capacity, shape.key_width);
  }
}

KeyValueView KeyValueCache::layer(int64_t index) {
  size_t i = keys_.size() == 1 ? 0 : static_cast<size_t>(index);
  return {keys_[i].view(), values_[i].view(), capacity_};
}

uint64_t KeyValueCache::bytes_per_sequence(const CacheShape& shape, int64_t capacity) {
  return static_cast<uint64_t>(2 * shape.layers * capacity * shape.key_width) * sizeof(float);
}

TokenBatch window_batch(std::span<const uint16_t> tokens) {
  TokenBatch batch;
  batch.shape = {1, static_cast<int64_t>(tokens.size()), 0};
  int32_t previous = TokenBatch::kNoToken;
  for (uint16_t token : tokens) {
    batch.tokens.push_back(token);
    batch.previous.push_back(previous);
    previous = token;
  }
  return batch;
}

}  // namespace thimble
