// random_quantized_model.h: random_model.h's weights as codes of many widths and as raw tensors of every type.
#pragma once

#include <algorithm>
#include <cmath>

#include "runtime/codes/quantized_model.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {

// values (rows, columns) rounded to codes, the scale chosen so that the row's largest magnitude is max_code.
inline RowScaledCodes rounded_codes(std::span<const float> values, int64_t rows, int max_code) {
  RowScaledCodes coded{max_code, {}, {}};
  size_t columns = values.size() / static_cast<size_t>(rows);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    std::span<const float> row = values.subspan(r * columns, columns);
    float largest = 0x1p-10f;
    for (float value : row) largest = std::max(largest, std::abs(value));
    coded.row_scales.push_back(fp16_from_float(largest / static_cast<float>(max_code)));
    float scale = float_from_fp16(coded.row_scales.back());
    for (float value : row)
      coded.codes.push_back(static_cast<int8_t>(
          std::clamp(std::round(value / scale), -static_cast<float>(max_code), static_cast<float>(max_code))));
  }
  return coded;
}

// Tensors take turns: four of five are coded, with widths from 2 to 8 bits, every fifth is raw.
inline QuantizedModel random_quantized_model(const GolfConfig& config, uint64_t seed = 1) {
  constexpr int kMaxCodes[] = {15, 31, 127, 7, 3, 15, 1, 63};
  constexpr DType kRaw[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};
  QuantizedModel model;
  model.config_json = canonical_json(to_json(config));
  size_t index = 0;
  for (const auto& [name, tensor] : random_golf_tensors(config, seed)) {
    std::vector<float> values = to_float32(tensor.view());
    size_t turn = index++;
    if (tensor.shape.empty() || turn % 5 == 4) {
      DType dtype = kRaw[turn / 5 % 4];
      model.tensors.push_back({name, tensor.shape, RawTensor{dtype, from_float32(dtype, values)}});
    } else {
      model.tensors.push_back({name, tensor.shape, rounded_codes(values, tensor.shape[0], kMaxCodes[turn % 8])});
    }
  }
  return model;
}

}  // namespace thimble
