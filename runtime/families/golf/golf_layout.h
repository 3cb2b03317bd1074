// golf_layout.h: which tensors a golf-gpt has, under which names and shapes, and how banks hold several of them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/families/golf/golf_config.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

// The unbanked names of layer i's matrices: "blocks.<i>.attn.c_q.weight" and so on.
struct LayerNames {
  explicit LayerNames(int64_t layer);
  std::string query, key, value, output, up, down;
  std::string q_gain, attn_scale, mlp_scale, resid_mix;
};

// The names of what is looked up or multiplied outside the layers.
constexpr const char* kTokenEmbedding = "tok_emb.weight";
constexpr const char* kBigramEmbedding = "bigram.embed.weight";
constexpr const char* kBigramProjection = "bigram.proj.weight";
constexpr const char* kValueEmbedding = "ve_shared.embed.weight";
constexpr const char* kValueProjection = "ve_shared.proj.weight";

// The matrix of the output head: the token embedding when it is tied, else "lm_head.weight".
std::string head_name(const GolfConfig& config);

// Every tensor of a model with this config, by unbanked name.
std::map<std::string, Shape> golf_tensor_shapes(const GolfConfig& config);

// Is the tensor of this unbanked name one of the matrices of products and lookups? The others are vectors, or a few of
// them, that the forward pass reads element by element.
bool is_golf_matrix(const std::string& name);

bool has_banks(const TensorMap& tensors);

// Replaces each bank by views of its slices under their unbanked names; other tensors pass through. A bank may come
// without bytes, for its shape alone; then so do its slices. A bank of the wrong rank, an odd first dimension or more
// than kMaxLayers layers, or a slice that also exists on its own, is a FormatError(path).
TensorMap unbank(const TensorMap& tensors, const std::string& path);

// Where an unbanked matrix lies: bank name and index. An empty bank name for tensors that banks never hold.
struct BankSlot {
  std::string bank;
  int64_t index = 0;
};
BankSlot bank_slot(const std::string& unbanked_name, int64_t num_layers);

}  // namespace thimble
