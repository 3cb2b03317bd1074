// llama_gguf.cpp: see llama_gguf.h.
#include "runtime/families/llama/llama_gguf.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <span>

#include "runtime/base/json.h"
#include "runtime/families/config_reader.h"

namespace thimble {
namespace {

constexpr double kDefaultTheta = 10000;
constexpr int64_t kGemmaPeriod = 6;          // of layers, the last of which is global
constexpr int64_t kLargestGemmaLayers = 62;  // whose scores have a scale of their own

// What Llama 3.1 and 3.2 were scaled by, but for the factor: a GGUF file has the frequencies alone.
constexpr double kLowFrequency = 1, kHighFrequency = 4;
constexpr int64_t kOriginalPositions = 8192;

// Names within a layer, without ".weight" and ".bias".
struct Member {
  const char *ours, *stored;
};
constexpr Member kMembers[] = {{"input_layernorm", "attn_norm"},    {"self_attn.q_proj", "attn_q"},
                               {"self_attn.k_proj", "attn_k"},      {"self_attn.v_proj", "attn_v"},
                               {"self_attn.o_proj", "attn_output"}, {"self_attn.q_norm", "attn_q_norm"},
                               {"self_attn.k_norm", "attn_k_norm"}, {"mlp.gate_proj", "ffn_gate"},
                               {"mlp.up_proj", "ffn_up"},           {"mlp.down_proj", "ffn_down"}};
constexpr Member kPlainNorms[] = {{"post_attention_layernorm", "ffn_norm"}};
constexpr Member kPostNorms[] = {{"post_attention_layernorm", "post_attention_norm"},
                                 {"pre_feedforward_layernorm", "ffn_norm"},
                                 {"post_feedforward_layernorm", "post_ffw_norm"}};

bool turns_neighbours(const LlamaVariant& variant) { return gguf_architecture(variant) == "llama"; }

// Every name that a model of this variant may have, whether it does or not.
std::vector<GgufParameter> possible_parameters(const LlamaVariant& variant, int64_t layers, int64_t heads,
                                               int64_t kv_heads) {
  const float norm_plus = variant.is_gemma ? 1.0F : 0.0F;
  std::vector<GgufParameter> all = {{kLlamaEmbedding, "token_embd.weight"},
                                    {kLlamaFinalNorm, "output_norm.weight", 0, norm_plus},
                                    {kLlamaHead, "output.weight"}};
  auto add = [&](int64_t layer, const Member& member) {
    const std::string ours = member.ours, stored = "blk." + std::to_string(layer) + "." + member.stored;
    const bool is_norm = ours.ends_with("norm");
    int64_t rotary = ours == "self_attn.q_proj" ? heads : ours == "self_attn.k_proj" ? kv_heads : 0;
    if (!turns_neighbours(variant)) rotary = 0;
    all.push_back({llama_name(layer, ours + ".weight"), stored + ".weight", rotary, is_norm ? norm_plus : 0});
    if (!is_norm) all.push_back({llama_name(layer, ours + ".bias"), stored + ".bias", rotary});
  };
  const std::span<const Member> norms =
      variant.has_post_norms ? std::span<const Member>(kPostNorms) : std::span<const Member>(kPlainNorms);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const Member& member : kMembers) add(layer, member);
    for (const Member& member : norms) add(layer, member);
  }
  return all;
}

// What llama.cpp's converter divides the frequencies of a scaled Llama by.
std::vector<float> rotary_factors(const LlamaRope& rope, int64_t head_dim) {
  LlamaRope plain = rope;
  plain.type = "default";
  const std::vector<double> scaled = rope.frequencies(head_dim), unscaled = plain.frequencies(head_dim);
  std::vector<float> factors;
  for (size_t k = 0; k < scaled.size(); ++k) factors.push_back(static_cast<float>(unscaled[k] / scaled[k]));
  return factors;
}

// Reads the metadata of one file.
class GgufConfig {
 public:
  GgufConfig(const LlamaVariant& variant, const Json& metadata, const TensorMap& tensors, const std::string& path)
      : variant_(variant),
        prefix_(std::string(gguf_architecture(variant)) + "."),
        metadata_(metadata),
        reader_(metadata_, path),
        tensors_(tensors),
        path_(path) {}

  GgufModel read() && {
    GgufModel model;
    const int64_t layers = whole("block_count", 1, kMaxLayers), heads = whole("attention.head_count", 1, kMaxDimension);
    const int64_t kv_heads = has("attention.head_count_kv") ? whole("attention.head_count_kv", 1, heads) : heads;
    const int64_t width = whole("embedding_length", 1, kMaxDimension);
    head_dim_ = head_width(width, heads);
    model.config = {{"model_type", variant_.model_type},
                    {"num_hidden_layers", layers},
                    {"hidden_size", width},
                    {"intermediate_size", whole("feed_forward_length", 1, kMaxDimension)},
                    {"num_attention_heads", heads},
                    {"num_key_value_heads", kv_heads},
                    {"head_dim", head_dim_},
                    {"rms_norm_eps", number("attention.layer_norm_rms_epsilon", {})}};
    if (has("context_length")) model.config["max_position_embeddings"] = whole("context_length", 1, kMostPositions);
    read_rope(model.config);
    if (variant_.is_gemma) read_gemma(layers, width / heads, model.config);
    for (const auto& [stored, ours] : {std::pair("bos_token_id", "bos_token_id"),
                                       {"eos_token_id", "eos_token_id"},
                                       {"padding_token_id", "pad_token_id"}})
      if (const std::string key = std::string("tokenizer.ggml.") + stored; metadata_.contains(key))
        model.config[ours] = metadata_.at(key);
    refuse_other_keys();
    read_parameters(layers, heads, kv_heads, model);
    return model;
  }

 private:
  static constexpr int64_t kMostPositions = int64_t{1} << 31;

  bool has(const std::string& key) {
    known_.insert(key);
    return metadata_.contains(prefix_ + key);
  }
  [[noreturn]] void reject(const std::string& key, const std::string& allowed) {
    reader_.reject(prefix_ + key, allowed);
  }

  int64_t whole(const std::string& key, int64_t low, int64_t high) {
    known_.insert(key);
    const auto value = reader_.required<int64_t>(prefix_ + key, "a GGUF file has it");
    if (value < low || value > high) reject(key, std::to_string(low) + " to " + std::to_string(high));
    return value;
  }
  double number(const std::string& key, std::optional<double> fallback) {
    known_.insert(key);
    return fallback ? reader_.optional<double>(prefix_ + key, *fallback)
                    : reader_.required<double>(prefix_ + key, "a GGUF file has it");
  }

  int64_t head_width(int64_t width, int64_t heads) {
    if (!has("attention.key_length") && width % heads != 0)
      reject("attention.head_count", "a divisor of " + prefix_ + "embedding_length, " + std::to_string(width));
    const int64_t d = has("attention.key_length") ? whole("attention.key_length", 1, kMaxDimension) : width / heads;
    for (const char* same : {"attention.value_length", "rope.dimension_count"})
      if (has(same) && whole(same, 1, kMaxDimension) != d) reject(same, std::to_string(d) + ", the columns of a head");
    return d;
  }

  void read_rope(Json& config) {
    config["rope_theta"] = number("rope.freq_base", kDefaultTheta);
    has("rope.scaling.original_context_length");
    has("rope.scaling.finetuned");
    // Old files have the factor alone.
    const bool is_old = has("rope.scale_linear") && !has("rope.scaling.factor");
    std::string type = is_old ? "linear" : "none";
    if (has("rope.scaling.type"))
      type = reader_.required<std::string>(prefix_ + "rope.scaling.type", "it says how frequencies are scaled");
    if (type != "none" && type != "linear") reject("rope.scaling.type", "'none' or 'linear'");
    const double factor = number(is_old ? "rope.scale_linear" : "rope.scaling.factor", 1.0);
    if (type == "linear" && factor != 1) config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", factor}};
    if (!tensors_.contains(kGgufRotaryFactors)) return;
    if (config.contains("rope_scaling"))
      throw FormatError(path_, std::string("tensor '") + kGgufRotaryFactors +
                                   "' scales rotary frequencies, which a linear scaling does already");
    read_rotary_factors(config);
  }

  // The scaling of Llama 3.1 that gives these factors.
  void read_rotary_factors(Json& config) {
    const TensorView& stored = tensors_.at(kGgufRotaryFactors);
    const std::string where = path_ + ": tensor '" + kGgufRotaryFactors + "'";
    if (stored.dtype != DType::kF32 || stored.shape != Shape{head_dim_ / 2} || stored.bytes.empty())
      throw FormatError(where, "is " + std::string(dtype_name(stored.dtype)) + " of shape " + shape_text(stored.shape) +
                                   ", expected F32 of " + shape_text({head_dim_ / 2}));
    const std::vector<float> found = to_float32(stored);
    if (std::ranges::all_of(found, [](float factor) { return factor == 1; })) return;
    LlamaRope rope;
    rope.theta = config.at("rope_theta");
    rope.type = "llama3";
    rope.low_frequency = kLowFrequency;
    rope.high_frequency = kHighFrequency;
    rope.factor = found.back();
    std::set<int64_t> lengths = {kOriginalPositions};
    if (has("rope.scaling.original_context_length"))
      lengths.insert(whole("rope.scaling.original_context_length", 1, kMostPositions));
    for (const int64_t length : lengths) {
      rope.original_positions = length;
      if (!(rope.factor > 0) || !agree(found, rotary_factors(rope, head_dim_))) continue;
      config["rope_scaling"] = {{"rope_type", rope.type},
                                {"factor", rope.factor},
                                {"low_freq_factor", rope.low_frequency},
                                {"high_freq_factor", rope.high_frequency},
                                {"original_max_position_embeddings", length}};
      return;
    }
    throw FormatError(where,
                      "scales rotary frequencies otherwise than by 'llama3' with low_freq_factor 1, "
                      "high_freq_factor 4 and original_max_position_embeddings 8192, which alone is known");
  }
  // The converter computes in float32.
  static bool agree(const std::vector<float>& found, const std::vector<float>& expected) {
    return std::ranges::equal(found, expected, [](float a, float b) { return std::abs(a - b) <= 1e-4F * std::abs(b); });
  }

  void read_gemma(int64_t layers, int64_t width_of_head, Json& config) {
    config["query_pre_attn_scalar"] = layers == kLargestGemmaLayers ? width_of_head : head_dim_;
    config["rope_local_base_freq"] = number("rope.freq_base_swa", kDefaultTheta);
    const bool has_window = has("attention.sliding_window");
    config["sliding_window"] = has_window ? whole("attention.sliding_window", 1, kMaxDimension) : kMaxDimension;
    const char* pattern = "attention.sliding_window_pattern";
    const int64_t period = has(pattern) ? whole(pattern, 1, kMaxLayers) : kGemmaPeriod;
    for (int64_t i = 0; i < layers; ++i)
      config["layer_types"].push_back(has_window && (i + 1) % period != 0 ? "sliding_attention" : "full_attention");
  }

  // Other programs' models, which go under the same name, would run with a wrong formula.
  void refuse_other_keys() {
    for (const char* harmless : {"vocab_size", "tensor_data_layout", "expert_count", "expert_used_count"})
      known_.insert(harmless);
    for (const char* key : {"expert_count", "expert_used_count"})
      if (has(key) && whole(key, 0, kMaxDimension) != 0) reject(key, "0");
    for (const auto& [key, value] : metadata_.items())
      if (key.starts_with(prefix_) && !known_.contains(key.substr(prefix_.size())))
        reader_.reject(key, "absent: what it changes is not known");
  }

  void read_parameters(int64_t layers, int64_t heads, int64_t kv_heads, GgufModel& model) {
    std::set<std::string> mapped = {kGgufRotaryFactors};
    for (GgufParameter& parameter : possible_parameters(variant_, layers, heads, kv_heads)) {
      if (!tensors_.contains(parameter.stored)) continue;
      mapped.insert(parameter.stored);
      model.parameters.push_back(std::move(parameter));
    }
    for (const auto& [name, tensor] : tensors_)
      if (!mapped.contains(name))
        throw FormatError(path_, "tensor '" + name + "' of shape " + shape_text(tensor.shape) + " is not part of a '" +
                                     std::string(gguf_architecture(variant_)) + "' model of " + std::to_string(layers) +
                                     " layers");
  }

  const LlamaVariant& variant_;
  const std::string prefix_;
  const Json& metadata_;
  const ConfigReader reader_;
  const TensorMap& tensors_;
  const std::string& path_;
  int64_t head_dim_ = 0;
  std::set<std::string> known_;
};

// The period of a Gemma's layers, 0 where they follow none.
int64_t period_of(const LlamaConfig& c) {
  for (int64_t period = 1; period <= c.num_layers + 1; ++period) {
    bool follows = true;
    for (int64_t i = 0; i < c.num_layers; ++i) follows &= c.is_local[static_cast<size_t>(i)] == ((i + 1) % period != 0);
    if (follows) return period;
  }
  return 0;
}

void refuse_unknown_to_gguf(const LlamaConfig& c, const std::string& path) {
  const std::string where = path + ": --to gguf: llama.cpp's '" + std::string(gguf_architecture(*c.variant)) + "' ";
  const bool is_llama = turns_neighbours(*c.variant);
  if (!is_llama && (c.attention_bias || c.mlp_bias)) throw UsageError(where + "has no such biases");
  if (c.rope.type == "llama3" && !is_llama) throw UsageError(where + "has no rotary scaling of type 'llama3'");
  if (!c.variant->is_gemma) return;
  const int64_t scalar = c.num_layers == kLargestGemmaLayers ? c.model_dim / c.num_heads : c.head_dim;
  if (c.query_scalar != static_cast<double>(scalar))
    throw UsageError(where + "has a query_pre_attn_scalar of " + std::to_string(scalar) + ", the model " +
                     canonical_json(c.query_scalar));
  if (c.local_rope.type != "default") throw UsageError(where + "does not scale the frequencies of local layers");
  if (period_of(c) == 0) throw UsageError(where + "has a global layer after every so many local ones, the model not");
}

}  // namespace

std::string_view gguf_architecture(const LlamaVariant& variant) {
  if (variant.is_gemma) return "gemma3";
  const std::string_view type = variant.model_type;
  return type.starts_with("qwen") ? type : "llama";
}

GgufModel llama_from_gguf(const LlamaVariant& variant, const Json& metadata, const TensorMap& tensors,
                          const std::string& path) {
  return GgufConfig(variant, metadata, tensors, path).read();
}

GgufModel llama_to_gguf(const LlamaConfig& c, const std::string& path) {
  refuse_unknown_to_gguf(c, path);
  GgufModel model;
  model.config = to_json(c);
  const std::string name(gguf_architecture(*c.variant)), prefix = name + ".";
  auto whole = [&](const char* key, int64_t value) { model.metadata[prefix + key] = static_cast<uint64_t>(value); };
  constexpr int64_t kUnstatedPositions = 8192;
  int64_t positions = c.max_positions > 0 ? c.max_positions : kUnstatedPositions;
  if (!c.variant->is_gemma && c.window > 0) positions = std::min(positions, c.window);
  model.metadata[kGgufArchitecture] = name;
  whole("block_count", c.num_layers);
  whole("context_length", positions);
  whole("embedding_length", c.model_dim);
  whole("feed_forward_length", c.mlp_dim);
  whole("attention.head_count", c.num_heads);
  whole("attention.head_count_kv", c.num_kv_heads);
  whole("attention.key_length", c.head_dim);
  whole("attention.value_length", c.head_dim);
  whole("rope.dimension_count", c.head_dim);
  whole("vocab_size", c.vocab_size);
  model.metadata[prefix + "attention.layer_norm_rms_epsilon"] = c.norm_epsilon;
  model.metadata[prefix + "rope.freq_base"] = c.rope.theta;
  if (c.rope.type == "linear") {
    model.metadata[prefix + "rope.scaling.type"] = "linear";
    model.metadata[prefix + "rope.scaling.factor"] = c.rope.factor;
  }
  if (c.rope.type == "llama3") {
    whole("rope.scaling.original_context_length", c.rope.original_positions);
    model.rotary_factors = rotary_factors(c.rope, c.head_dim);
  }
  if (c.variant->is_gemma) {
    model.metadata[prefix + "rope.freq_base_swa"] = c.local_rope.theta;
    whole("attention.sliding_window", c.window);
    whole("attention.sliding_window_pattern", period_of(c));
  }
  const std::map<std::string, Shape> shapes = llama_tensor_shapes(c);
  for (GgufParameter& parameter : possible_parameters(*c.variant, c.num_layers, c.num_heads, c.num_kv_heads))
    if (shapes.contains(parameter.parameter)) model.parameters.push_back(std::move(parameter));
  return model;
}

}  // namespace thimble
