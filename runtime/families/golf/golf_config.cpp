// golf_config.cpp: reads a config, infers what tensor shapes prove, and cross-checks the two.
#include "runtime/families/golf/golf_config.h"

#include <cmath>
#include <limits>
#include <set>

#include "runtime/base/count_text.h"
#include "runtime/families/config_reader.h"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {
namespace {

// Caps whose float32 value, inverse and products with logits are all finite and normal.
constexpr double kMinSoftcap = 1e-30, kMaxSoftcap = 1e30;

const TensorView& golf_tensor(const TensorMap& tensors, const std::string& name, size_t rank, const std::string& path) {
  return find_tensor(tensors, name, rank, path, kGolfArchitecture);
}

// The mlp_mult with int(mlp_mult * D) == M. The quotient's rounding may put the product just below M.
double mlp_mult_of(int64_t mlp_dim, int64_t model_dim) {
  double quotient = static_cast<double>(mlp_dim) / static_cast<double>(model_dim);
  bool below = quotient * static_cast<double>(model_dim) < static_cast<double>(mlp_dim);
  return below ? std::nextafter(quotient, std::numeric_limits<double>::infinity()) : quotient;
}

// The keys that shapes prove.
void infer_from_tensors(const ConfigReader& reader, const TensorMap& tensors, const std::string& path, GolfConfig& c) {
  const Shape& embedding = golf_tensor(tensors, "tok_emb.weight", 2, path).shape;
  c.vocab_size = reader.proven("vocab_size", embedding[0], "tok_emb.weight");
  check_vocabulary(c.vocab_size, "tok_emb.weight", path);
  c.model_dim = reader.proven("model_dim", embedding[1], "tok_emb.weight");
  int64_t layers = 0;
  while (layers < kMaxLayers && tensors.contains(LayerNames(layers).query)) ++layers;
  LayerNames first(0);
  if (layers == 0) golf_tensor(tensors, first.query, 2, path);
  c.num_layers = reader.proven("num_layers", layers, LayerNames(layers - 1).query);
  c.num_heads = reader.proven("num_heads", golf_tensor(tensors, first.q_gain, 1, path).shape[0], first.q_gain);
  if (c.model_dim % c.num_heads != 0)
    throw FormatError(path, "tensor '" + first.q_gain + "': " + std::to_string(c.num_heads) +
                                " heads do not divide the model width " + std::to_string(c.model_dim));
  int64_t kv_dim = golf_tensor(tensors, first.key, 2, path).shape[0];
  if (kv_dim % c.head_dim() != 0 || c.num_heads % (kv_dim / c.head_dim()) != 0)
    throw FormatError(path, "tensor '" + first.key + "': " + std::to_string(kv_dim) +
                                " rows are not a divisor of the query heads times the head width " +
                                std::to_string(c.head_dim()));
  c.num_kv_heads = reader.proven("num_kv_heads", kv_dim / c.head_dim(), first.key);
  int64_t mlp_dim = golf_tensor(tensors, first.up, 2, path).shape[0];
  c.mlp_mult = reader.optional("mlp_mult", mlp_mult_of(mlp_dim, c.model_dim));
  if (!(c.mlp_mult > 0) || c.mlp_mult > static_cast<double>(kMaxDimension) || c.mlp_dim() != mlp_dim)
    reader.reject("mlp_mult",
                  "what gives an MLP width of " + std::to_string(mlp_dim) + ", as tensor '" + first.up + "' has it");
  c.tie_embeddings = reader.proven("tie_embeddings", !tensors.contains("lm_head.weight"), "lm_head.weight");
  c.smear_gate = reader.proven("smear_gate", tensors.contains("smear.gate"), "smear.gate");
  c.skip_gates = reader.proven("skip_gates", tensors.contains("skip_gates"), "skip_gates");
  bool bigram = tensors.contains("bigram.embed.weight");
  Shape table = bigram ? golf_tensor(tensors, "bigram.embed.weight", 2, path).shape : Shape{0, 0};
  c.bigram_vocab_size = reader.proven("bigram_vocab_size", table[0], "bigram.embed.weight");
  if (bigram && c.bigram_vocab_size < 2)
    throw FormatError(path, "tensor 'bigram.embed.weight': 1 row, the bigram hash needs at least 2");
  // Without a table the width means nothing; configs may still carry it.
  c.bigram_dim = bigram ? reader.proven("bigram_dim", table[1], "bigram.embed.weight") : 0;
}

// The keys that only the config can tell.
void read_required(const ConfigReader& reader, GolfConfig& c) {
  c.logit_softcap = reader.required<double>("logit_softcap", "it bounds the logits");
  c.rope_base = reader.required<double>("rope_base", "it sets the rotary frequencies");
  c.rope_dims = reader.required<int64_t>("rope_dims", "it says how much of each head rotates");
  c.rope_train_seq_len = reader.required<int64_t>("rope_train_seq_len", "longer contexts raise the rotary base");
  c.ln_scale = reader.required<bool>("ln_scale", "it scales the norms by depth");
  c.xsa_last_n = reader.required<int64_t>("xsa_last_n", "it says which layers use exclusive self-attention");
  if (!(c.logit_softcap >= kMinSoftcap && c.logit_softcap <= kMaxSoftcap))
    reader.reject("logit_softcap", "from 1e-30 to 1e30");
  if (!(c.rope_base > 1)) reader.reject("rope_base", "above 1");
  if (c.rope_dims < 4 || c.rope_dims % 2 != 0 || c.rope_dims > c.head_dim())
    reader.reject("rope_dims", "an even number from 4 to the head width " + std::to_string(c.head_dim()));
  if (c.rope_train_seq_len < 1 || c.rope_train_seq_len > kMaxDimension)
    reader.reject("rope_train_seq_len", "1 to 2^24");
  if (c.xsa_last_n < 0 || c.xsa_last_n > c.num_layers)
    reader.reject("xsa_last_n", "0 to the number of layers, " + std::to_string(c.num_layers));
  if (reader.required<std::string>("mlp_activation", "it names the MLP's nonlinearity") != kGolfActivation)
    reader.reject("mlp_activation", "'" + std::string(kGolfActivation) + "'");
}

// Value embeddings: shapes prove width and count, the config says which layers.
void read_value_embeddings(const ConfigReader& reader, const TensorMap& tensors, const std::string& path,
                           GolfConfig& c) {
  if (!tensors.contains("ve_shared.embed.weight")) {
    if (!reader.optional<std::vector<int64_t>>("ve_layers", {}).empty())
      reader.reject("ve_layers", "an empty array, since tensor 've_shared.embed.weight' is missing");
    return;
  }
  int64_t width = golf_tensor(tensors, "ve_shared.embed.weight", 2, path).shape[1];
  c.ve_dim = reader.proven("ve_dim", width, "ve_shared.embed.weight");
  c.ve_layers = reader.required<std::vector<int64_t>>("ve_layers", "it says which layers add the value embedding");
  int64_t scales = 0;
  while (tensors.contains("ve_layer_scales." + std::to_string(scales))) ++scales;
  std::set<int64_t> distinct(c.ve_layers.begin(), c.ve_layers.end());
  bool valid = !c.ve_layers.empty() && distinct.size() == c.ve_layers.size() && *distinct.begin() >= 0 &&
               *distinct.rbegin() < c.num_layers;
  if (!valid) reader.reject("ve_layers", "distinct layers from 0 to " + std::to_string(c.num_layers - 1));
  if (static_cast<int64_t>(c.ve_layers.size()) != scales)
    reader.reject("ve_layers", counted(scales, "layer") + ", one for each tensor 've_layer_scales.k'");
}

}  // namespace

double GolfConfig::rope_base_at(int64_t context_length) const {
  if (context_length <= rope_train_seq_len) return rope_base;
  auto dims = static_cast<double>(rope_dims);
  double stretch = static_cast<double>(context_length) / static_cast<double>(rope_train_seq_len);
  return rope_base * std::pow(stretch, dims / (dims - 2));
}

Json to_json(const GolfConfig& c) {
  Json json = {{"architecture", kGolfArchitecture},
               {"vocab_size", c.vocab_size},
               {"num_layers", c.num_layers},
               {"model_dim", c.model_dim},
               {"num_heads", c.num_heads},
               {"num_kv_heads", c.num_kv_heads},
               {"mlp_mult", c.mlp_mult},
               {"tie_embeddings", c.tie_embeddings},
               {"logit_softcap", c.logit_softcap},
               {"rope_base", c.rope_base},
               {"rope_dims", c.rope_dims},
               {"rope_train_seq_len", c.rope_train_seq_len},
               {"ln_scale", c.ln_scale},
               {"xsa_last_n", c.xsa_last_n},
               {"bigram_vocab_size", c.bigram_vocab_size},
               {"smear_gate", c.smear_gate},
               {"skip_gates", c.skip_gates},
               {"ve_layers", c.ve_layers},
               {"mlp_activation", kGolfActivation}};
  if (c.bigram_vocab_size > 0) json["bigram_dim"] = c.bigram_dim;
  if (!c.ve_layers.empty()) json["ve_dim"] = c.ve_dim;
  return json;
}

GolfConfig resolve_golf_config(const Json& given, const std::string& config_path, const TensorMap& tensors,
                               const std::string& checkpoint_path) {
  ConfigReader reader(given, config_path);
  if (reader.required<std::string>("architecture", "it names the model family") != kGolfArchitecture)
    reader.reject("architecture", "'" + std::string(kGolfArchitecture) + "'");
  GolfConfig config;
  infer_from_tensors(reader, tensors, checkpoint_path, config);
  read_required(reader, config);
  read_value_embeddings(reader, tensors, checkpoint_path, config);
  return config;
}

}  // namespace thimble
