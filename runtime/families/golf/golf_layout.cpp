// golf_layout.cpp: the tables behind golf_layout.h.
#include "runtime/families/golf/golf_layout.h"

#include <algorithm>
#include <array>

#include "runtime/base/error.h"
#include "runtime/families/config_reader.h"

namespace thimble {
namespace {

// A bank holds matrices of all layers along its first axis: slice i (or n + i, the second half) belongs to layer i.
struct BankRule {
  const char* bank;
  const char* first_half;   // member of layer i at slice i
  const char* second_half;  // member of layer i at slice n + i; nullptr when the bank has only n slices
};

constexpr std::array kBankRules = {
    BankRule{"qo_bank", "attn.c_q.weight", "attn.proj.weight"},
    BankRule{"kv_bank", "attn.c_k.weight", "attn.c_v.weight"},
    BankRule{"mlp_up_bank", "mlp.fc.weight", nullptr},
    BankRule{"mlp_down_bank", "mlp.proj.weight", nullptr},
};

std::string member_name(int64_t layer, const std::string& member) {
  return "blocks." + std::to_string(layer) + "." + member;
}

void unbank_one(const BankRule& rule, const TensorView& bank, const std::string& path, TensorMap& out) {
  std::string where = path + ": tensor '" + rule.bank + "'";
  int halves = rule.second_half ? 2 : 1;
  if (bank.shape.size() != 3) throw FormatError(where, "shape " + shape_text(bank.shape) + ", a bank has 3 dimensions");
  // Without elements, the bytes of the file would not bound the sizes.
  if (std::ranges::min(bank.shape) < 1)
    throw FormatError(where, "shape " + shape_text(bank.shape) + ", a bank's dimensions must be at least 1");
  if (bank.shape[0] % halves != 0)
    throw FormatError(where, "shape " + shape_text(bank.shape) + ", the first dimension must be twice the layers");
  int64_t layers = bank.shape[0] / halves;
  if (layers > kMaxLayers)
    throw FormatError(
        where, "shape " + shape_text(bank.shape) + ", a model has at most " + std::to_string(kMaxLayers) + " layers");
  auto slice_bytes = static_cast<uint64_t>(bank.shape[1] * bank.shape[2]) * dtype_bytes(bank.dtype);
  for (int64_t slice = 0; slice < bank.shape[0]; ++slice) {
    std::string name = member_name(slice % layers, slice < layers ? rule.first_half : rule.second_half);
    TensorView view{bank.dtype, {bank.shape[1], bank.shape[2]}, {}};
    if (!bank.bytes.empty()) view.bytes = bank.bytes.subspan(static_cast<uint64_t>(slice) * slice_bytes, slice_bytes);
    if (!out.emplace(name, view).second) throw FormatError(where, "slice '" + name + "' also exists on its own");
  }
}

}  // namespace

LayerNames::LayerNames(int64_t layer)
    : query(member_name(layer, "attn.c_q.weight")),
      key(member_name(layer, "attn.c_k.weight")),
      value(member_name(layer, "attn.c_v.weight")),
      output(member_name(layer, "attn.proj.weight")),
      up(member_name(layer, "mlp.fc.weight")),
      down(member_name(layer, "mlp.proj.weight")),
      q_gain(member_name(layer, "attn.q_gain")),
      attn_scale(member_name(layer, "attn_scale")),
      mlp_scale(member_name(layer, "mlp_scale")),
      resid_mix(member_name(layer, "resid_mix")) {}

std::string head_name(const GolfConfig& config) { return config.tie_embeddings ? kTokenEmbedding : "lm_head.weight"; }

std::map<std::string, Shape> golf_tensor_shapes(const GolfConfig& c) {
  std::map<std::string, Shape> shapes;
  shapes[kTokenEmbedding] = {c.vocab_size, c.model_dim};
  if (!c.tie_embeddings) shapes["lm_head.weight"] = {c.vocab_size, c.model_dim};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    LayerNames names(i);
    shapes[names.query] = shapes[names.output] = {c.model_dim, c.model_dim};
    shapes[names.key] = shapes[names.value] = {c.kv_dim(), c.model_dim};
    shapes[names.up] = {c.mlp_dim(), c.model_dim};
    shapes[names.down] = {c.model_dim, c.mlp_dim()};
    shapes[names.q_gain] = {c.num_heads};
    shapes[names.attn_scale] = shapes[names.mlp_scale] = {c.model_dim};
    shapes[names.resid_mix] = {2, c.model_dim};
  }
  if (c.encoder_layers() > 0) {
    shapes["skip_weights"] = {c.encoder_layers(), c.model_dim};
    if (c.skip_gates) shapes["skip_gates"] = {c.encoder_layers(), c.model_dim};
  }
  if (c.smear_gate) shapes["smear.gate"] = {c.model_dim};
  if (c.bigram_vocab_size > 0) {
    shapes[kBigramEmbedding] = {c.bigram_vocab_size, c.bigram_dim};
    shapes[kBigramProjection] = {c.model_dim, c.bigram_dim};
    shapes["bigram.scale"] = {};
  }
  if (!c.ve_layers.empty()) {
    shapes[kValueEmbedding] = {c.vocab_size, c.ve_dim};
    shapes[kValueProjection] = {c.kv_dim(), c.ve_dim};
    shapes["ve_shared.scale"] = {};
    for (size_t k = 0; k < c.ve_layers.size(); ++k) shapes["ve_layer_scales." + std::to_string(k)] = {1};
  }
  return shapes;
}

bool is_golf_matrix(const std::string& name) { return name.ends_with(".weight"); }

bool has_banks(const TensorMap& tensors) {
  for (const BankRule& rule : kBankRules)
    if (tensors.contains(rule.bank)) return true;
  return false;
}

TensorMap unbank(const TensorMap& tensors, const std::string& path) {
  TensorMap out;
  for (const auto& [name, tensor] : tensors) {
    bool is_bank = false;
    for (const BankRule& rule : kBankRules) is_bank = is_bank || name == rule.bank;
    if (!is_bank) out.emplace(name, tensor);
  }
  for (const BankRule& rule : kBankRules)
    if (auto found = tensors.find(rule.bank); found != tensors.end()) unbank_one(rule, found->second, path, out);
  return out;
}

BankSlot bank_slot(const std::string& unbanked_name, int64_t num_layers) {
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    for (const BankRule& rule : kBankRules) {
      if (unbanked_name == member_name(layer, rule.first_half)) return {rule.bank, layer};
      if (rule.second_half && unbanked_name == member_name(layer, rule.second_half))
        return {rule.bank, num_layers + layer};
    }
  }
  return {};
}

}  // namespace thimble
