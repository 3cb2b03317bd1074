// quantized_model.cpp: dequantization, the readable reference.
#include "runtime/codes/quantized_model.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

std::vector<float> dequantize(const RowScaledCodes& coded) {
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

std::vector<float> dequantize(const SteppedCodes& coded) {
  std::vector<float> values(coded.codes.size()), column_sizes;
  for (int16_t step : coded.column_steps) column_sizes.push_back(step_size(step));
  const size_t columns = column_sizes.size();
  const Trellis trellis(coded.trellis_bits);
  std::vector<uint32_t> states(columns);
  coded.codes.visit([&](auto codes) {
    for (size_t r = 0; r < coded.row_steps.size(); ++r) {
      if (r % kTrellisRows == 0) std::ranges::fill(states, 0u);
      const float row_size = step_size(coded.row_steps[r]);
      for (size_t k = 0; k < columns; ++k) {
        const int32_t code = codes[r * columns + k];
        values[r * columns + k] = static_cast<float>(Trellis::level(states[k], code)) * row_size * column_sizes[k];
        states[k] = trellis.next(states[k], code);
      }
    }
  });
  return values;
}

}  // namespace

int code_bits(int max_code) { return std::bit_width(static_cast<unsigned>(max_code)) + 1; }

float step_size(int step) {
  const int octave = step >> 6, part = step & (kStepsPerOctave - 1);
  static_assert(kStepsPerOctave == 64);
  // None of the 64 is so near to a tie that the last bit of exp2 could matter (a test looks).
  return std::ldexp(static_cast<float>(std::exp2(part / double{kStepsPerOctave})), octave);
}

std::vector<float> dequantize(const QuantizedTensor& tensor) {
  if (const auto* raw = std::get_if<RawTensor>(&tensor.data)) return to_float32(raw->dtype, raw->bytes);
  if (const auto* stepped = std::get_if<SteppedCodes>(&tensor.data)) return dequantize(*stepped);
  if (const auto* blocked = std::get_if<Nvfp4Codes>(&tensor.data)) {
    const int64_t rows = tensor.shape.at(0), count = element_count(tensor.shape);
    const Matrix values = dequantize_nvfp4(*blocked, rows, rows == 0 ? 0 : count / rows);
    return {values.data(), values.data() + count};
  }
  return dequantize(std::get<RowScaledCodes>(tensor.data));
}

TensorMap quantized_shapes(const QuantizedModel& quantized) {
  TensorMap shapes;
  for (const QuantizedTensor& tensor : quantized.tensors) {
    const auto* raw = std::get_if<RawTensor>(&tensor.data);
    shapes.emplace(tensor.name, TensorView{raw ? raw->dtype : DType::kF32, tensor.shape, {}});
  }
  return shapes;
}

FloatTensors dequantize_tensors(const QuantizedModel& quantized) {
  FloatTensors values;
  std::vector<std::vector<float>*> results;
  for (const QuantizedTensor& tensor : quantized.tensors) results.push_back(&values[tensor.name]);
  parallel_for(static_cast<int64_t>(results.size()), [&](int64_t i) {
    *results[static_cast<size_t>(i)] = dequantize(quantized.tensors[static_cast<size_t>(i)]);
  });
  return values;
}

}  // namespace thimble
