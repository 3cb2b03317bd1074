// golf_family.h: the golf-gpt (docs/checkpoints.md): grouped-query attention with rotary positions,
// residual mixes, U-shaped skips, optional embeddings of token pairs and of values.
#pragma once

#include "runtime/families/family.h"
#include "runtime/families/golf/golf_config.h"

namespace thimble {

class GolfFamily final : public Family {
 public:
  std::string_view name() const override { return "golf-gpt"; }
  int64_t usual_stride() const override { return 64; }      // Parameter Golf's rule
  bool writes_documents() const override { return false; }  // as its published recipe
  bool has_tensors(const TensorMap& tensors) const override;
  MappedTensors from_file(const TensorMap& tensors, Contents contents, const std::string& path) const override;
  std::map<std::string, Tensor> to_file(const Spec& spec, std::map<std::string, Tensor> parameters,
                                        bool banked) const override;

 protected:
  Spec describe(const Json& config, const TensorMap& parameters, const Where& where) const override;
};

// The forward pass.
Network golf_network(const GolfConfig& config);
Description golf_description(const GolfConfig& config);

}  // namespace thimble
