// llama_config.cpp: reads a config with Hugging Face's keys, infers what tensor shapes prove, and cross-checks the two.
// Keys that the config lacks have the values that Hugging Face's library gives them, where those are harmless.
#include "runtime/families/llama/llama_config.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <iterator>
#include <numbers>

#include "runtime/base/json.h"
#include "runtime/families/config_reader.h"

namespace thimble {
namespace {

// Epsilons whose float32 value is positive and normal.
constexpr double kMinEpsilon = 1e-30, kMaxEpsilon = 1;
constexpr double kLargestFactor = 1e6, kLargestTheta = 1e12;
constexpr const char *kFull = "full_attention", *kSliding = "sliding_attention";

const LlamaVariant kVariants[] = {{.model_type = "llama",
                                   .architecture = "LlamaForCausalLM",
                                   .may_have_attention_biases = true,
                                   .may_have_mlp_biases = true},
                                  {.model_type = "mistral", .architecture = "MistralForCausalLM"},
                                  {.model_type = "qwen2", .architecture = "Qwen2ForCausalLM", .has_query_biases = true},
                                  {.model_type = "qwen3",
                                   .architecture = "Qwen3ForCausalLM",
                                   .may_have_attention_biases = true,
                                   .has_head_norms = true},
                                  {.model_type = "gemma3_text",
                                   .architecture = "Gemma3ForCausalLM",
                                   .activation = Activation::kGeluTanh,
                                   .may_have_attention_biases = true,
                                   .has_head_norms = true,
                                   .has_post_norms = true,
                                   .is_gemma = true,
                                   .default_rope_theta = 1e6}};

bool is_mistral(const LlamaConfig& c) { return std::string_view(c.variant->model_type) == "mistral"; }
bool is_qwen(const LlamaConfig& c) { return std::string_view(c.variant->model_type).starts_with("qwen"); }

// Hugging Face writes null for what a model does not have.
Json without_nulls(const Json& given) {
  if (!given.is_object()) return given;
  Json kept = Json::object();
  for (const auto& [key, value] : given.items())
    if (!value.is_null()) kept[key] = value;
  return kept;
}

class LlamaReader {
 public:
  LlamaReader(const LlamaVariant& variant, const Json& given, const std::string& config_path, const TensorMap& tensors,
              const std::string& checkpoint_path)
      : stated_(given),
        given_(without_nulls(given)),
        reader_(given_, config_path),
        path_(config_path),
        tensors_(tensors),
        checkpoint_(checkpoint_path) {
    c_.variant = &variant;
  }

  LlamaConfig read() && {
    refuse_variants();
    infer_shapes();
    infer_heads();
    read_numbers();
    read_windows();
    read_ropes();
    return std::move(c_);
  }

 private:
  const Shape& shape_of(const std::string& name) const {
    return find_tensor(tensors_, name, 2, checkpoint_, c_.variant->model_type).shape;
  }

  // What other programs run under the same name.
  void refuse_variants() const {
    for (const char* key : {"quantization_config", "attn_logit_softcapping", "final_logit_softcapping", "vision_config",
                            "text_config", "num_local_experts", "num_experts", "n_routed_experts"})
      if (given_.contains(key)) reader_.reject(key, "null");
    for (const char* key : {"use_bidirectional_attention", "add_cross_attention", "is_encoder_decoder"})
      if (reader_.optional(key, false)) reader_.reject(key, "false");
    check_whole_rotation(reader_);
    const char* key = c_.variant->is_gemma ? "hidden_activation" : "hidden_act";
    const std::string known = c_.variant->is_gemma ? "gelu_pytorch_tanh" : "silu";
    if (reader_.optional(key, known) != known) reader_.reject(key, "'" + known + "'");
  }
  static void check_whole_rotation(const ConfigReader& reader) {
    if (reader.optional("partial_rotary_factor", 1.0) != 1) reader.reject("partial_rotary_factor", "1");
  }

  void infer_shapes() {
    const Shape& embedding = shape_of(kLlamaEmbedding);
    c_.vocab_size = reader_.proven("vocab_size", embedding[0], kLlamaEmbedding);
    check_vocabulary(c_.vocab_size, kLlamaEmbedding, checkpoint_);
    c_.model_dim = reader_.proven("hidden_size", embedding[1], kLlamaEmbedding);
    while (c_.num_layers < kMaxLayers && tensors_.contains(llama_name(c_.num_layers, kQuery))) ++c_.num_layers;
    if (c_.num_layers == 0) shape_of(llama_name(0, kQuery));
    c_.num_layers = reader_.proven("num_hidden_layers", c_.num_layers, llama_name(c_.num_layers - 1, kQuery));
    const std::string gate = llama_name(0, "mlp.gate_proj.weight");
    c_.mlp_dim = reader_.proven("intermediate_size", shape_of(gate)[0], gate);
    c_.tie_embeddings = reader_.proven("tie_word_embeddings", !tensors_.contains(kLlamaHead), kLlamaHead);
    auto has = [&](bool may, const char* key, const std::string& bias) {
      return may && reader_.proven(key, tensors_.contains(bias), bias);
    };
    c_.attention_bias =
        has(c_.variant->may_have_attention_biases, "attention_bias", llama_name(0, "self_attn.q_proj.bias"));
    c_.mlp_bias = has(c_.variant->may_have_mlp_biases, "mlp_bias", llama_name(0, "mlp.gate_proj.bias"));
  }

  void infer_heads() {
    const std::string query = llama_name(0, kQuery), key = llama_name(0, "self_attn.k_proj.weight");
    const int64_t query_rows = shape_of(query)[0], key_rows = shape_of(key)[0];
    c_.num_heads = reader_.required<int64_t>("num_attention_heads", "it says how queries are divided into heads");
    if (c_.num_heads < 1 || query_rows % c_.num_heads != 0 || query_rows / c_.num_heads % 2 != 0)
      reader_.reject("num_attention_heads",
                     "what divides the " + std::to_string(query_rows) + " rows of tensor '" + query + "' evenly");
    c_.head_dim = reader_.proven("head_dim", query_rows / c_.num_heads, query);
    c_.num_kv_heads = reader_.proven("num_key_value_heads", key_rows / c_.head_dim, key);
    if (c_.num_kv_heads < 1 || key_rows % c_.head_dim != 0 || c_.num_heads % c_.num_kv_heads != 0)
      throw FormatError(checkpoint_, "tensor '" + key + "': " + std::to_string(key_rows) + " rows, expected heads of " +
                                         std::to_string(c_.head_dim) + ", as many as divide " +
                                         std::to_string(c_.num_heads));
  }

  double positive(const ConfigReader& reader, const char* key, double value, double most) const {
    if (!(value > 0 && value <= most)) reader.reject(key, "above 0 and at most " + canonical_json(most));
    return value;
  }

  void read_numbers() {
    c_.norm_epsilon = reader_.required<double>("rms_norm_eps", "the norms add it to the mean square");
    if (!(c_.norm_epsilon >= kMinEpsilon && c_.norm_epsilon <= kMaxEpsilon))
      reader_.reject("rms_norm_eps", "from 1e-30 to 1");
    c_.max_positions = reader_.optional<int64_t>("max_position_embeddings", 0);
    if (c_.max_positions < 0) reader_.reject("max_position_embeddings", "a positive number");
    c_.query_scalar = static_cast<double>(c_.head_dim);
    if (c_.variant->is_gemma)
      c_.query_scalar =
          positive(reader_, "query_pre_attn_scalar",
                   reader_.required<double>("query_pre_attn_scalar", "scores are divided by its square root"), 1e12);
  }

  // Which layers see a window of positions alone, and how long it is.
  void read_windows() {
    const auto layers = static_cast<size_t>(c_.num_layers);
    const bool uses =
        is_qwen(c_) ? reader_.optional("use_sliding_window", false) : is_mistral(c_) || c_.variant->is_gemma;
    const int64_t window = uses ? window_length() : 0;
    c_.is_local.assign(layers, uses && window > 0);
    if (given_.contains("layer_types")) {
      read_layer_types(window > 0);
    } else if (is_qwen(c_) && uses) {
      const auto first = reader_.required<int64_t>("max_window_layers", "it says which layers have a window");
      for (size_t i = 0; i < layers; ++i) c_.is_local[i] = static_cast<int64_t>(i) >= first;
    } else if (c_.variant->is_gemma) {
      const auto pattern = reader_.optional<int64_t>("sliding_window_pattern", 6);
      if (pattern < 1) reader_.reject("sliding_window_pattern", "a positive number");
      for (size_t i = 0; i < layers; ++i) c_.is_local[i] = (static_cast<int64_t>(i) + 1) % pattern != 0;
    }
    if (c_.variant->is_gemma || std::ranges::count(c_.is_local, true) > 0) c_.window = window;
  }

  // 0: a Mistral without, which its config must say.
  int64_t window_length() const {
    if (is_mistral(c_) && stated_.contains("sliding_window") && stated_.at("sliding_window").is_null()) return 0;
    const auto window = reader_.required<int64_t>("sliding_window", "it says how far local layers see");
    if (window < 1 || window > kMaxDimension) reader_.reject("sliding_window", "1 to " + std::to_string(kMaxDimension));
    return window;
  }

  void read_layer_types(bool has_window) {
    const Json& types = given_.at("layer_types");
    if (!types.is_array() || types.size() != c_.is_local.size())
      reader_.reject("layer_types", "an array of " + std::to_string(c_.num_layers) + " strings");
    for (size_t i = 0; i < types.size(); ++i) {
      c_.is_local[i] = types[i] == Json(kSliding);
      if (!c_.is_local[i] && types[i] != Json(kFull))
        reader_.reject("layer_types", "'" + std::string(kFull) + "' and '" + kSliding + "' for each layer");
      if (c_.is_local[i] && !has_window)
        reader_.reject("layer_types", "'" + std::string(kFull) + "' alone, where no sliding window is in use");
      if (is_mistral(c_) && c_.is_local[i] != has_window)
        reader_.reject("layer_types", "'" + std::string(kSliding) + "' alone: all layers of a mistral have the window");
    }
  }

  // Either "rope_theta" and "rope_scaling", or "rope_parameters", which for Gemma hold one object for each type of
  // layers. Both where they agree.
  void read_ropes() {
    auto base = [&](const char* key, double fallback) {
      return positive(reader_, key, reader_.optional(key, fallback), kLargestTheta);
    };
    const double theta = base("rope_theta", c_.variant->default_rope_theta);
    const double local_theta = base("rope_local_base_freq", LlamaRope().theta);
    if (!given_.contains("rope_parameters")) {
      c_.rope = rope_of("rope_scaling", given_.value("rope_scaling", Json::object()), theta);
      c_.local_rope = rope_of("rope_local_base_freq", Json::object(), local_theta);
      return;
    }
    const Json& all = given_.at("rope_parameters");
    auto member = [&](const char* type) { return all.value(type, Json::object()); };
    if (c_.variant->is_gemma) {
      // Flat ones transformers would not read at all.
      if (!all.is_object() || !(all.empty() || all.contains(kFull) || all.contains(kSliding)))
        reader_.reject("rope_parameters", std::string("an object for each of '") + kFull + "' and '" + kSliding + "'");
      c_.rope = rope_of(std::string("rope_parameters.") + kFull, member(kFull), theta);
      c_.local_rope = rope_of(std::string("rope_parameters.") + kSliding, member(kSliding), local_theta);
    } else {
      c_.rope = rope_of("rope_parameters", all, theta);
    }
    if (given_.contains("rope_scaling") && rope_of("rope_scaling", given_.at("rope_scaling"), theta) != c_.rope)
      reader_.reject("rope_scaling", "null beside 'rope_parameters', or the same");
  }

  LlamaRope rope_of(const std::string& key, const Json& found, double theta) const {
    const Json given = without_nulls(found);
    const ConfigReader reader(given, path_, key + ".");
    LlamaRope rope;
    rope.theta = positive(reader, "rope_theta", reader.optional("rope_theta", theta), kLargestTheta);
    const char* type_key = given.contains("rope_type") ? "rope_type" : "type";
    rope.type = reader.optional<std::string>(type_key, "default");
    if (rope.type != "default" && rope.type != "linear" && rope.type != "llama3")
      reader.reject(type_key, "'default', 'linear' and 'llama3'");
    check_whole_rotation(reader);
    if (rope.type == "default") return rope;
    auto number = [&](const char* name) {
      return positive(reader, name, reader.required<double>(name, "it scales the rotary frequencies"), kLargestFactor);
    };
    rope.factor = number("factor");
    if (rope.type == "linear") return rope;
    rope.low_frequency = number("low_freq_factor");
    rope.high_frequency = number("high_freq_factor");
    if (!(rope.high_frequency > rope.low_frequency)) reader.reject("high_freq_factor", "above 'low_freq_factor'");
    const char* original = "original_max_position_embeddings";
    rope.original_positions = c_.max_positions > 0
                                  ? reader.optional<int64_t>(original, c_.max_positions)
                                  : reader.required<int64_t>(original, "it scales the rotary frequencies");
    if (rope.original_positions < 1) reader.reject(original, "a positive number");
    return rope;
  }

  static constexpr const char* kQuery = "self_attn.q_proj.weight";

  const Json& stated_;  // with nulls
  const Json given_;
  const ConfigReader reader_;
  const std::string& path_;
  const TensorMap& tensors_;
  const std::string& checkpoint_;
  LlamaConfig c_;
};

Json to_json(const LlamaRope& rope) {
  Json json = {{"rope_type", rope.type}, {"rope_theta", rope.theta}};
  if (rope.type != "default") json["factor"] = rope.factor;
  if (rope.type == "llama3") {
    json["low_freq_factor"] = rope.low_frequency;
    json["high_freq_factor"] = rope.high_frequency;
    json["original_max_position_embeddings"] = rope.original_positions;
  }
  return json;
}

}  // namespace

const LlamaVariant& llama_variant(std::string_view model_type) {
  const auto* found =
      std::ranges::find_if(kVariants, [&](const LlamaVariant& v) { return v.model_type == model_type; });
  assert(found != std::end(kVariants));
  return *found;
}

// llama3: long waves are stretched by the factor, short ones not at all, those between by something between.
std::vector<double> LlamaRope::frequencies(int64_t head_dim) const {
  std::vector<double> all;
  for (int64_t k = 0; k < head_dim / 2; ++k) {
    const double frequency = std::pow(theta, -2.0 * static_cast<double>(k) / static_cast<double>(head_dim));
    double kept = type == "linear" ? 0 : 1;
    if (type == "llama3") {
      const double waves = static_cast<double>(original_positions) * frequency / (2 * std::numbers::pi);
      kept = std::clamp((waves - low_frequency) / (high_frequency - low_frequency), 0.0, 1.0);
    }
    all.push_back(kept * frequency + (1 - kept) * frequency / factor);
  }
  return all;
}

std::string llama_name(int64_t layer, const std::string& member) {
  return "model.layers." + std::to_string(layer) + "." + member;
}

std::map<std::string, Shape> llama_tensor_shapes(const LlamaConfig& c) {
  const LlamaVariant& variant = *c.variant;
  const int64_t width = c.model_dim, queries = c.num_heads * c.head_dim, keys = c.num_kv_heads * c.head_dim;
  std::map<std::string, Shape> shapes = {{kLlamaEmbedding, {c.vocab_size, width}}, {kLlamaFinalNorm, {width}}};
  if (!c.tie_embeddings) shapes[kLlamaHead] = {c.vocab_size, width};
  for (int64_t i = 0; i < c.num_layers; ++i) {
    auto project = [&](const std::string& member, int64_t rows, int64_t columns, bool has_bias) {
      shapes[llama_name(i, member + ".weight")] = {rows, columns};
      if (has_bias) shapes[llama_name(i, member + ".bias")] = {rows};
    };
    project("self_attn.q_proj", queries, width, c.has_query_biases());
    project("self_attn.k_proj", keys, width, c.has_query_biases());
    project("self_attn.v_proj", keys, width, c.has_query_biases());
    project("self_attn.o_proj", width, queries, c.attention_bias);
    project("mlp.gate_proj", c.mlp_dim, width, c.mlp_bias);
    project("mlp.up_proj", c.mlp_dim, width, c.mlp_bias);
    project("mlp.down_proj", width, c.mlp_dim, c.mlp_bias);
    for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"})
      shapes[llama_name(i, norm)] = {width};
    if (variant.has_post_norms)
      for (const char* norm : {"pre_feedforward_layernorm.weight", "post_feedforward_layernorm.weight"})
        shapes[llama_name(i, norm)] = {width};
    if (variant.has_head_norms)
      for (const char* norm : {"self_attn.q_norm.weight", "self_attn.k_norm.weight"})
        shapes[llama_name(i, norm)] = {c.head_dim};
  }
  return shapes;
}

Json to_json(const LlamaConfig& c) {
  const LlamaVariant& variant = *c.variant;
  Json json = {{"model_type", variant.model_type},
               {"vocab_size", c.vocab_size},
               {"num_hidden_layers", c.num_layers},
               {"num_attention_heads", c.num_heads},
               {"num_key_value_heads", c.num_kv_heads},
               {"head_dim", c.head_dim},
               {"hidden_size", c.model_dim},
               {"intermediate_size", c.mlp_dim},
               {"rms_norm_eps", c.norm_epsilon},
               {"tie_word_embeddings", c.tie_embeddings},
               {variant.is_gemma ? "hidden_activation" : "hidden_act", variant.is_gemma ? "gelu_pytorch_tanh" : "silu"},
               {"rope_parameters", to_json(c.rope)}};
  if (c.max_positions > 0) json["max_position_embeddings"] = c.max_positions;
  if (variant.may_have_attention_biases) json["attention_bias"] = c.attention_bias;
  if (variant.may_have_mlp_biases) json["mlp_bias"] = c.mlp_bias;
  if (variant.is_gemma) {
    json["query_pre_attn_scalar"] = c.query_scalar;
    json["rope_parameters"] = {{kFull, to_json(c.rope)}, {kSliding, to_json(c.local_rope)}};
  }
  if (is_qwen(c)) json["use_sliding_window"] = c.window > 0;
  if (is_mistral(c)) json["sliding_window"] = nullptr;
  if (c.window > 0) json["sliding_window"] = c.window;
  if (c.window > 0)
    for (const bool local : c.is_local) json["layer_types"].push_back(local ? kSliding : kFull);
  return json;
}

Json hub_config(const LlamaConfig& c) {
  Json json = to_json(c);
  json["architectures"] = {c.variant->architecture};
  Json scaling = to_json(c.rope);
  scaling.erase("rope_theta");
  json["rope_theta"] = c.rope.theta;
  json["rope_scaling"] = c.rope.type == "default" ? Json() : scaling;
  if (!c.variant->is_gemma) return json;
  json["rope_local_base_freq"] = c.local_rope.theta;
  // Whole numbers are integers there.
  if (c.query_scalar == std::floor(c.query_scalar))
    json["query_pre_attn_scalar"] = static_cast<int64_t>(c.query_scalar);
  return json;
}

LlamaConfig resolve_llama_config(const LlamaVariant& variant, const Json& given, const std::string& config_path,
                                 const TensorMap& tensors, const std::string& checkpoint_path) {
  return LlamaReader(variant, given, config_path, tensors, checkpoint_path).read();
}

}  // namespace thimble
