// random_model.h: golf-gpt checkpoints with random weights, for the tests of any folder and the benchmarks.
// The same config and seed give the same bytes on every machine.
#pragma once

#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/families/golf/golf_family.h"
#include "runtime/families/golf/golf_layout.h"
#include "runtime/ops/weights.h"
#include "tests/runtime/ops/random_tokens.h"
#include "tests/runtime/tensor/owned_tensors.h"

namespace thimble {

// Five layers with every option on: bigrams, smear, gated skips, value embeddings, XSA on the last two layers.
inline GolfConfig small_golf_config() {
  GolfConfig c;
  c.vocab_size = 29;
  c.num_layers = 5;
  c.model_dim = 24;
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.mlp_mult = 2.5;
  c.logit_softcap = 30;
  c.rope_base = 10000;
  c.rope_dims = 4;
  c.rope_train_seq_len = 64;
  c.ln_scale = true;
  c.xsa_last_n = 2;
  c.bigram_vocab_size = 53;
  c.bigram_dim = 10;
  c.smear_gate = true;
  c.skip_gates = true;
  c.ve_layers = {1, 4};
  c.ve_dim = 7;
  return c;
}

// The same 512 wide, with a vocabulary of 1,024: large enough for what a device's memory holds to show.
inline GolfConfig wide_golf_config() {
  GolfConfig c = small_golf_config();
  c.vocab_size = 1024;
  c.model_dim = 512;
  c.num_heads = 8;
  c.num_kv_heads = 4;
  c.rope_dims = 16;
  return c;
}

// Matrices keep the scale of their input, gains and mixing weights stay near their usual values, so that every term of
// the forward pass matters.
inline WeightRange weight_range(const std::string& name, const Shape& shape) {
  if (name.ends_with("embed.weight") || name == "tok_emb.weight") return {0, std::sqrt(3.0)};
  if (name.ends_with(".weight")) return {0, std::sqrt(3.0 / static_cast<double>(shape[1]))};
  if (name.ends_with("q_gain")) return {1.5, 0.5};
  if (name.ends_with("gate") || name == "skip_gates") return {0, 2};
  return {0.8, 0.6};  // scales, skip weights, residual mixes
}

// Every tensor of the model, unbanked, in `dtype`.
inline OwnedTensors random_golf_tensors(const GolfConfig& config, uint64_t seed = 1, DType dtype = DType::kF32) {
  OwnedTensors tensors;
  uint64_t stream = 0;
  for (const auto& [name, shape] : golf_tensor_shapes(config)) {
    tensors[name] = random_tensor(weight_range(name, shape), shape, dtype, seed, stream++);
  }
  return tensors;
}

// The same tensors with the layers' matrices in banks, as the training code saves them.
inline OwnedTensors with_banks(const OwnedTensors& unbanked, int64_t num_layers) {
  OwnedTensors out;
  std::map<std::string, std::map<int64_t, const Tensor*>> banks;
  for (const auto& [name, tensor] : unbanked) {
    BankSlot slot = bank_slot(name, num_layers);
    if (slot.bank.empty()) {
      out[name] = tensor;
    } else {
      banks[slot.bank][slot.index] = &tensor;
    }
  }
  for (const auto& [name, slices] : banks) {
    const Tensor& first = *slices.begin()->second;
    Tensor bank{first.dtype, {static_cast<int64_t>(slices.size()), first.shape[0], first.shape[1]}, {}};
    for (const auto& [index, slice] : slices) append_bytes(bank.bytes, slice->bytes);
    out[name] = bank;
  }
  return out;
}

inline std::shared_ptr<const Weights> golf_weights(const GolfConfig& config, const OwnedTensors& tensors) {
  return std::make_shared<const Weights>(
      bind_weights(std::make_shared<const Network>(golf_network(config)), float_tensors(views_of(tensors))));
}

inline std::shared_ptr<const Weights> random_golf_weights(const GolfConfig& config, uint64_t seed = 1) {
  return golf_weights(config, random_golf_tensors(config, seed));
}

}  // namespace thimble
