// gpt2_family.h: GPT-2 as Hugging Face and llm.c store it: LayerNorm, GELU by tanh, learned positions, biases.
#pragma once

#include "runtime/families/family.h"
#include "runtime/families/gpt2/gpt2_config.h"

namespace thimble {

class Gpt2Family final : public Family {
 public:
  std::string_view name() const override { return "gpt2"; }
  bool has_tensors(const TensorMap& tensors) const override;
  // Names get the prefix "transformer.", which files of the bare model lack; two that become equal are a
  // FormatError(path). The buffers ".attn.bias" and ".attn.masked_bias" (causal masks) are left out, and a
  // "lm_head.weight" that repeats the token embedding byte for byte. The four projections of a layer, which Conv1D
  // stores as (in, out), are turned.
  MappedTensors from_file(const TensorMap& tensors, Contents contents, const std::string& path) const override;
  std::map<std::string, Tensor> to_file(const Spec& spec, std::map<std::string, Tensor> parameters,
                                        bool banked) const override;
  Json hub_config(const Spec& spec) const override;

 protected:
  Spec describe(const Json& config, const TensorMap& parameters, const Where& where) const override;
};

// The forward pass (Radford et al. 2019, section 2.3; pre-norm blocks).
Network gpt2_network(const Gpt2Config& config);
Description gpt2_description(const Gpt2Config& config);

}  // namespace thimble
