// llama_family.cpp: see llama_family.h.
#include "runtime/families/llama/llama_family.h"

#include "runtime/base/error.h"
#include "runtime/families/config_reader.h"

namespace thimble {
namespace {

constexpr std::string_view kPrefix = "model.";

std::string full_name(const std::string& name) {
  return name == kLlamaHead || name.starts_with(kPrefix) ? name : std::string(kPrefix) + name;
}

}  // namespace

bool LlamaFamily::has_tensors(const TensorMap& tensors) const {
  auto has = [&](const std::string& member) {
    const std::string name = llama_name(0, member);
    return tensors.contains(name) || tensors.contains(name.substr(kPrefix.size()));
  };
  if (!has("self_attn.q_proj.weight") || variant_.model_type == std::string_view("mistral")) return false;
  return has("self_attn.q_norm.weight") == variant_.has_head_norms &&
         has("pre_feedforward_layernorm.weight") == variant_.has_post_norms &&
         (has("self_attn.q_proj.bias") && !has("self_attn.o_proj.bias")) == variant_.has_query_biases;
}

MappedTensors LlamaFamily::from_file(const TensorMap& tensors, Contents contents, const std::string& path) const {
  MappedTensors mapped;
  for (const auto& [name, tensor] : tensors)
    if (!name.ends_with(".rotary_emb.inv_freq") && !mapped.tensors.emplace(full_name(name), tensor).second)
      throw FormatError(path, "tensors '" + name + "' and '" + std::string(kPrefix) + name + "' are the same");
  if (is_tied_copy(mapped.tensors, kLlamaHead, kLlamaEmbedding)) mapped.tensors.erase(kLlamaHead);
  if (contents == Contents::kShapes)
    for (auto& [name, tensor] : mapped.tensors) tensor.bytes = {};
  return mapped;
}

std::map<std::string, Tensor> LlamaFamily::to_file(const Spec&, std::map<std::string, Tensor> parameters, bool) const {
  return parameters;
}

Json LlamaFamily::hub_config(const Spec& spec) const { return thimble::hub_config(config_of(spec)); }

GgufModel LlamaFamily::from_gguf(const Json& metadata, const TensorMap& tensors, const std::string& path) const {
  return llama_from_gguf(variant_, metadata, tensors, path);
}

GgufModel LlamaFamily::to_gguf(const Spec& spec, const std::string& path) const {
  return llama_to_gguf(config_of(spec), path);
}

LlamaConfig LlamaFamily::config_of(const Spec& spec) const {
  TensorMap shapes;
  for (const auto& [name, shape, role] : spec.network->parameters) shapes[name] = {DType::kF32, shape, {}};
  return resolve_llama_config(variant_, spec.config, "", shapes, "");
}

Spec LlamaFamily::describe(const Json& config, const TensorMap& parameters, const Where& where) const {
  const LlamaConfig resolved = resolve_llama_config(variant_, config, where.config, parameters, where.checkpoint);
  return spec_of(*this, to_json(resolved), llama_description(resolved));
}

}  // namespace thimble
