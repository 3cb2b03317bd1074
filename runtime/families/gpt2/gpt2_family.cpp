// gpt2_family.cpp: see gpt2_family.h.
#include "runtime/families/gpt2/gpt2_family.h"

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/families/config_reader.h"
#include "runtime/families/gpt2/gpt2_config.h"

namespace thimble {
namespace {

constexpr std::string_view kPrefix = "transformer.";

bool is_mask(const std::string& name) { return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"); }

std::string full_name(const std::string& name) {
  return name == kGpt2Head || name.starts_with(kPrefix) ? name : std::string(kPrefix) + name;
}

TensorMap with_full_names(const TensorMap& tensors, const std::string& path) {
  TensorMap named;
  for (const auto& [name, tensor] : tensors)
    if (!is_mask(name) && !named.emplace(full_name(name), tensor).second)
      throw FormatError(path, "tensors '" + name + "' and '" + std::string(kPrefix) + name + "' are the same");
  if (is_tied_copy(named, kGpt2Head, kGpt2TokenEmbedding)) named.erase(kGpt2Head);
  return named;
}

}  // namespace

bool Gpt2Family::has_tensors(const TensorMap& tensors) const {
  const std::string first = Gpt2LayerNames(0).query_key_value;
  return tensors.contains(first) || tensors.contains(first.substr(kPrefix.size()));
}

MappedTensors Gpt2Family::from_file(const TensorMap& tensors, Contents contents, const std::string& path) const {
  MappedTensors mapped{with_full_names(tensors, path), {}, false};
  std::vector<TensorView*> projections;
  for (auto& [name, tensor] : mapped.tensors) {
    if (contents == Contents::kShapes) tensor.bytes = {};
    if (is_gpt2_projection(name) && tensor.shape.size() == 2) projections.push_back(&tensor);
  }
  mapped.storage.resize(projections.size());
  parallel_for(static_cast<int64_t>(projections.size()), [&](int64_t i) {
    TensorView& view = *projections[static_cast<size_t>(i)];
    if (contents == Contents::kShapes) return std::swap(view.shape[0], view.shape[1]);
    Tensor turned = transposed(view);
    ByteVector& bytes = mapped.storage[static_cast<size_t>(i)] = std::move(turned.bytes);
    view = {turned.dtype, turned.shape, bytes};
  });
  return mapped;
}

std::map<std::string, Tensor> Gpt2Family::to_file(const Spec&, std::map<std::string, Tensor> parameters, bool) const {
  for (auto& [name, tensor] : parameters) {
    if (!is_gpt2_projection(name)) continue;
    if (tensor.bytes.empty())
      std::swap(tensor.shape.at(0), tensor.shape.at(1));
    else
      tensor = transposed(tensor.view());
  }
  return parameters;
}

Json Gpt2Family::hub_config(const Spec& spec) const {
  Json config = spec.config;
  config.erase("architecture");
  config["model_type"] = kGpt2Family;
  config["architectures"] = {"GPT2LMHeadModel"};
  return config;
}

Spec Gpt2Family::describe(const Json& config, const TensorMap& parameters, const Where& where) const {
  const Gpt2Config resolved = resolve_gpt2_config(config, where.config, parameters, where.checkpoint);
  return spec_of(*this, to_json(resolved), gpt2_description(resolved));
}

}  // namespace thimble
