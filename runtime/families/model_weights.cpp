// model_weights.cpp: see model_weights.h.
#include "runtime/families/model_weights.h"

#include <algorithm>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"

namespace thimble {

std::shared_ptr<const Weights> weights_of(const Spec& spec, const TensorMap& parameters) {
  return std::make_shared<const Weights>(bind_weights(spec.network, float_tensors(parameters)));
}

Spec quantized_spec(const QuantizedModel& quantized, const std::string& path) {
  const Json config = parse_json(as_bytes_of(quantized.config_json), path);
  const TensorMap shapes = quantized_shapes(quantized);
  const Family* family = find_family(config, {});
  if (!family) throw FormatError(path, cannot_be_run(config));
  return family->resolve(config, shapes, {path, path});
}

Weights dequantize_weights(const Spec& spec, const QuantizedModel& quantized) {
  Weights weights = bind_weights(spec.network, dequantize_tensors(quantized));
  for (const QuantizedTensor& tensor : quantized.tensors)
    if (std::holds_alternative<Nvfp4Codes>(tensor.data))
      for (MatrixId id : spec.network->linear_matrices())
        if (spec.network->matrix(id).name == tensor.name) weights.in_nvfp4.insert(id);
  return weights;
}

RunnableModel dequantize_model(const QuantizedModel& quantized, const std::string& path) {
  Spec spec = quantized_spec(quantized, path);
  auto weights = std::make_shared<const Weights>(dequantize_weights(spec, quantized));
  return {std::move(spec), std::move(weights)};
}

}  // namespace thimble
