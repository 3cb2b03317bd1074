// gpt2_family.h: GPT-2 as Hugging Face and llm.c store it: LayerNorm, GELU by tanh, learned positions, biases.
#pragma once

#include "runtime/families/family.h"

namespace thimble {

class Gpt2Family final : public Family {
 public:
  std::string_view name() const override { return "gpt2"; }
  bool has_tensors(const TensorMap& tensors) const override;
  // Projections are stored as (in, out), by Conv1D, and turned.
  MappedTensors from_file(const TensorMap& tensors, bool with_bytes, const std::string& path) const override;
  std::map<std::string, Tensor> to_file(const Spec& spec, std::map<std::string, Tensor> parameters,
                                        bool banked) const override;
  Spec resolve(const Json& config, const TensorMap& parameters, const Where& where) const override;
};

}  // namespace thimble
