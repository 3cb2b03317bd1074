// quantized_model.cpp: dequantization, the readable reference.
#include "runtime/quantized_model.h"

#include <bit>

#include "runtime/parallel.h"

namespace thimble {

int code_bits(int max_code) { return std::bit_width(static_cast<unsigned>(max_code)) + 1; }

std::vector<float> dequantize(const QuantizedTensor& tensor) {
  if (const auto* raw = std::get_if<RawTensor>(&tensor.data)) return to_float32(raw->dtype, raw->bytes);
  const auto& coded = std::get<RowScaledCodes>(tensor.data);
  std::vector<float> values(coded.codes.size());
  size_t rows = coded.row_scales.size();
  size_t columns = rows == 0 ? 0 : coded.codes.size() / rows;
  for (size_t r = 0; r < rows; ++r) {
    float scale = float_from_fp16(coded.row_scales[r]);
    // int8 times fp16 has at most 18 significant bits: exact in float32.
    for (size_t k = 0; k < columns; ++k)
      values[r * columns + k] = static_cast<float>(coded.codes[r * columns + k]) * scale;
  }
  return values;
}

ModelConfig quantized_config(const QuantizedModel& quantized, const std::string& path) {
  TensorMap shapes;  // no bytes: the config check reads names, dtypes and shapes only
  for (const QuantizedTensor& tensor : quantized.tensors) {
    const auto* raw = std::get_if<RawTensor>(&tensor.data);
    shapes.emplace(tensor.name, TensorView{raw ? raw->dtype : DType::kF32, tensor.shape, {}});
  }
  return resolve_model_config(parse_json(as_bytes_of(quantized.config_json), path), path, shapes, path);
}

Model dequantize_model(const QuantizedModel& quantized, const std::string& path) {
  ModelConfig config = quantized_config(quantized, path);
  FloatTensors values;
  std::vector<std::vector<float>*> results;
  for (const QuantizedTensor& tensor : quantized.tensors) results.push_back(&values[tensor.name]);
  parallel_for(static_cast<int64_t>(results.size()), [&](int64_t i) {
    *results[static_cast<size_t>(i)] = dequantize(quantized.tensors[static_cast<size_t>(i)]);
  });
  return bind_model(config, std::move(values));
}

}  // namespace thimble
