// golf_family.cpp: see golf_family.h.
#include "runtime/families/golf/golf_family.h"

#include "runtime/families/golf/golf_config.h"
#include "runtime/families/golf/golf_layout.h"

namespace thimble {

bool GolfFamily::has_tensors(const TensorMap& tensors) const {
  return tensors.contains(kTokenEmbedding) && (has_banks(tensors) || tensors.contains(LayerNames(0).query));
}

// Banks become views of their slices.
MappedTensors GolfFamily::from_file(const TensorMap& tensors, Contents, const std::string& path) const {
  MappedTensors mapped{unbank(tensors, path), {}, has_banks(tensors)};
  // torch's AveragedModel keeps a counter beside the weights; it is not one of them.
  mapped.tensors.erase("n_averaged");
  return mapped;
}

std::map<std::string, Tensor> GolfFamily::to_file(const Spec& spec, std::map<std::string, Tensor> parameters,
                                                  bool banked) const {
  if (!banked) return parameters;
  std::map<std::string, Tensor> out;
  std::map<std::string, std::map<int64_t, Tensor>> banks;
  for (auto& [name, tensor] : parameters) {
    const BankSlot slot = bank_slot(name, spec.network->layers);
    if (slot.bank.empty())
      out[name] = std::move(tensor);
    else
      banks[slot.bank][slot.index] = std::move(tensor);
  }
  for (auto& [name, slices] : banks) {
    const Tensor& first = slices.begin()->second;
    Tensor bank{first.dtype, {static_cast<int64_t>(slices.size()), first.shape[0], first.shape[1]}, {}};
    for (const auto& [index, slice] : slices) append_bytes(bank.bytes, slice.bytes);
    out[name] = std::move(bank);
  }
  return out;
}

Spec GolfFamily::describe(const Json& config, const TensorMap& parameters, const Where& where) const {
  const GolfConfig resolved = resolve_golf_config(config, where.config, parameters, where.checkpoint);
  return spec_of(*this, to_json(resolved), golf_description(resolved));
}

}  // namespace thimble
