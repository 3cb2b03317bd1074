// model_weights.cpp: see model_weights.h.
#include "runtime/families/model_weights.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

namespace thimble {

std::shared_ptr<const Weights> weights_of(const Spec& spec, const TensorMap& parameters,
                                          const std::shared_ptr<const void>& owner) {
  std::map<std::string, StoredMatrix> matrices;
  TensorMap others = parameters;
  for (const MatrixUse& use : spec.network->matrices) {
    matrices[use.name] = StoredMatrix(parameters.at(use.name), use.rows, use.columns, owner);
    others.erase(use.name);
  }
  return std::make_shared<const Weights>(bind_weights(spec.network, std::move(matrices), float_tensors(others)));
}

Spec quantized_spec(const QuantizedModel& quantized, const std::string& path) {
  const Json config = parse_json(as_bytes_of(quantized.config_json), path);
  const TensorMap shapes = quantized_shapes(quantized);
  const Family* family = find_family(config, {});
  if (!family) throw FormatError(path, cannot_be_run(config));
  return family->resolve(config, shapes, {path, path});
}

std::map<std::string, Tensor> checkpoint_tensors(const QuantizedModel& quantized, DType dtype,
                                                 const std::string& path) {
  const Json config = parse_json(as_bytes_of(quantized.config_json), path);
  const bool runs = find_family(config, {}) != nullptr;
  if (!runs && quantized.banked) throw FormatError(path, cannot_be_run(config));
  std::map<std::string, Tensor> tensors = dequantized_tensors(quantized, dtype, path);
  if (!runs) return tensors;
  const Spec spec = quantized_spec(quantized, path);
  return spec.family->to_file(spec, std::move(tensors), quantized.banked);
}

Weights dequantize_weights(std::shared_ptr<const Network> network, const QuantizedModel& quantized) {
  std::map<std::string, StoredMatrix> matrices;
  FloatTensors others;
  for (const MatrixUse& use : network->matrices) matrices[use.name];
  for (const QuantizedTensor& tensor : quantized.tensors)
    if (!matrices.contains(tensor.name)) others[tensor.name];
  parallel_for(static_cast<int64_t>(quantized.tensors.size()), [&](int64_t i) {
    const QuantizedTensor& tensor = quantized.tensors[static_cast<size_t>(i)];
    if (const auto matrix = matrices.find(tensor.name); matrix != matrices.end())
      matrix->second = stored_matrix(tensor);
    else
      others.at(tensor.name) = dequantize(tensor);
  });
  Weights weights = bind_weights(std::move(network), std::move(matrices), std::move(others));
  for (const QuantizedTensor& tensor : quantized.tensors)
    if (std::holds_alternative<Nvfp4Codes>(tensor.data))
      for (MatrixId id : weights.network->linear_matrices())
        if (weights.network->matrix(id).name == tensor.name) weights.in_nvfp4.insert(id);
  return weights;
}

RunnableModel dequantize_model(const QuantizedModel& quantized, const std::string& path) {
  Spec spec = quantized_spec(quantized, path);
  auto weights = std::make_shared<const Weights>(dequantize_weights(spec.network, quantized));
  return {std::move(spec), std::move(weights)};
}

}  // namespace thimble
