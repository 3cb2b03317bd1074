// llama_family.h: Llama and its relatives as Hugging Face stores them: RMS norms, rotary positions, grouped-query
// attention, gated MLPs. One class for all; what differs is in LlamaVariant (llama_config.h).
#pragma once

#include "runtime/families/family.h"
#include "runtime/families/llama/llama_config.h"
#include "runtime/families/llama/llama_gguf.h"

namespace thimble {

class LlamaFamily final : public Family {
 public:
  // model_type: "llama", "mistral", "qwen2", "qwen3" or "gemma3_text".
  explicit LlamaFamily(std::string_view model_type) : variant_(llama_variant(model_type)) {}

  std::string_view name() const override { return variant_.model_type; }
  // Tensors do not tell a Mistral from a Llama: without a model_type it is the latter.
  bool has_tensors(const TensorMap& tensors) const override;
  // Names get the prefix "model.", which files of the bare model lack; two that become equal are a FormatError(path).
  // The buffers ".rotary_emb.inv_freq" are left out, and a "lm_head.weight" that repeats the token embedding byte for
  // byte.
  MappedTensors from_file(const TensorMap& tensors, Contents contents, const std::string& path) const override;
  std::map<std::string, Tensor> to_file(const Spec& spec, std::map<std::string, Tensor> parameters,
                                        bool banked) const override;
  Json hub_config(const Spec& spec) const override;
  std::string_view gguf_architecture() const override { return thimble::gguf_architecture(variant_); }
  GgufModel from_gguf(const Json& metadata, const TensorMap& tensors, const std::string& path) const override;
  GgufModel to_gguf(const Spec& spec, const std::string& path) const override;

 protected:
  Spec describe(const Json& config, const TensorMap& parameters, const Where& where) const override;

 private:
  LlamaConfig config_of(const Spec& spec) const;

  const LlamaVariant& variant_;
};

// The forward pass (arXiv 2302.13971; for Gemma 3 arXiv 2503.19786).
Network llama_network(const LlamaConfig& config);
Description llama_description(const LlamaConfig& config);

}  // namespace thimble
