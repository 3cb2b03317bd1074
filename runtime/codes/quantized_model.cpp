// quantized_model.cpp: dequantization, the readable reference.
#include "runtime/codes/quantized_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

constexpr int64_t kCodesPerTask = int64_t{1} << 20;

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

std::vector<float> step_sizes(const std::vector<int16_t>& steps) {
  std::vector<float> sizes;
  for (int16_t step : steps) sizes.push_back(step_size(step));
  return sizes;
}

// out (R, K): value_of(r, k, level) of each code, in parallel for segments of the trellis. What the inner loop reads is
// copied to where it alone sees it: codes and levels of a byte may alias everything else.
template <typename Out, typename ValueOf>
void read_levels(const SteppedCodes& coded, Out* out, const ValueOf& value_of) {
  const size_t columns = coded.column_steps.size();
  const Trellis trellis(coded.trellis_bits);
  const auto segment = static_cast<int64_t>(std::max<size_t>(1, columns)) * kTrellisRows;
  const int64_t rows_per_task = kTrellisRows * std::max<int64_t>(1, kCodesPerTask / segment);
  coded.codes.visit([&](auto codes) {
    parallel_chunks(std::ssize(coded.row_steps), rows_per_task, [&](int64_t first, int64_t last) {
      std::vector<uint32_t> states(columns);
      const size_t width = columns;
      const Trellis machine = trellis;
      const ValueOf value = value_of;
      for (auto r = static_cast<size_t>(first); r < static_cast<size_t>(last); ++r) {
        if (r % kTrellisRows == 0) std::ranges::fill(states, 0u);
        const auto* const row = codes.data() + r * width;
        Out* const to = out + r * width;
        uint32_t* const state = states.data();
        for (size_t k = 0; k < width; ++k) {
          const int32_t code = row[k];
          to[k] = value(r, k, Trellis::level(state[k], code));
          state[k] = machine.next(state[k], code);
        }
      }
    });
  });
}

std::vector<float> dequantize(const SteppedCodes& coded) {
  std::vector<float> values(coded.codes.size());
  const std::vector<float> row_sizes = step_sizes(coded.row_steps), column_sizes = step_sizes(coded.column_steps);
  read_levels(coded, values.data(),
              [rows = row_sizes.data(), columns = column_sizes.data()](size_t r, size_t k, int64_t level) {
                return static_cast<float>(level) * rows[r] * columns[k];
              });
  return values;
}

template <typename Level>
StoredMatrix levels_in(const SteppedCodes& coded) {
  std::vector<Level> levels(coded.codes.size());
  read_levels(coded, levels.data(), [](size_t, size_t, int64_t level) { return static_cast<Level>(level); });
  return {std::move(levels), step_sizes(coded.row_steps), step_sizes(coded.column_steps)};
}

// Levels lie in [2 * least code, 2 * greatest code + 1].
template <typename Level>
bool holds_levels(const SteppedCodes& coded) {
  constexpr int32_t kMost = std::numeric_limits<Level>::max() / 2;
  std::atomic<bool> holds_all = true;
  coded.codes.visit([&](auto codes) {
    parallel_chunks(std::ssize(codes), kCodesPerTask, [&](int64_t first, int64_t last) {
      const auto some = codes.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first));
      const auto [least, most] = std::ranges::minmax(some);
      if (least < -kMost - 1 || most > kMost) holds_all = false;
    });
  });
  return holds_all;
}

}  // namespace

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

StoredMatrix stored_matrix(const QuantizedTensor& tensor) {
  const int64_t rows = tensor.shape.at(0), columns = rows == 0 ? 0 : element_count(tensor.shape) / rows;
  if (const auto* raw = std::get_if<RawTensor>(&tensor.data))
    return {std::make_shared<const Tensor>(Tensor{raw->dtype, tensor.shape, raw->bytes}), rows, columns};
  if (const auto* scaled = std::get_if<RowScaledCodes>(&tensor.data)) {
    std::vector<float> scales;
    for (uint16_t scale : scaled->row_scales) scales.push_back(float_from_fp16(scale));
    return {scaled->codes, std::move(scales), std::vector<float>(static_cast<size_t>(columns), 1.0f)};
  }
  if (const auto* stepped = std::get_if<SteppedCodes>(&tensor.data)) {
    if (holds_levels<int8_t>(*stepped)) return levels_in<int8_t>(*stepped);
    if (holds_levels<int16_t>(*stepped)) return levels_in<int16_t>(*stepped);
  }
  return Matrix(dequantize(tensor), rows, columns);
}

TensorMap quantized_shapes(const QuantizedModel& quantized) {
  TensorMap shapes;
  for (const QuantizedTensor& tensor : quantized.tensors) {
    const auto* raw = std::get_if<RawTensor>(&tensor.data);
    shapes.emplace(tensor.name, TensorView{raw ? raw->dtype : DType::kF32, tensor.shape, {}});
  }
  return shapes;
}

ByteVector narrowed(std::span<const float> values, DType dtype, const std::string& name, const std::string& path) {
  ByteVector bytes = from_float32(dtype, values);
  if (dtype == DType::kF32) return bytes;
  const std::vector<float> kept = to_float32(dtype, bytes);
  for (size_t i = 0; i < values.size(); ++i)
    if (std::isfinite(values[i]) && !std::isfinite(kept[i]))
      throw FormatError(path, fmt::format("tensor '{}' holds {}, beyond the range of {}; export it as F32", name,
                                          values[i], dtype_name(dtype)));
  return bytes;
}

std::map<std::string, Tensor> dequantized_tensors(const QuantizedModel& quantized, DType dtype,
                                                  const std::string& path) {
  std::map<std::string, Tensor> tensors;
  std::vector<Tensor*> results;
  for (const QuantizedTensor& tensor : quantized.tensors) results.push_back(&tensors[tensor.name]);
  parallel_for(static_cast<int64_t>(results.size()), [&](int64_t i) {
    const QuantizedTensor& tensor = quantized.tensors[static_cast<size_t>(i)];
    const auto* raw = std::get_if<RawTensor>(&tensor.data);
    *results[static_cast<size_t>(i)] =
        raw && !is_floating(raw->dtype)
            ? Tensor{raw->dtype, tensor.shape, raw->bytes}
            : Tensor{dtype, tensor.shape, narrowed(dequantize(tensor), dtype, tensor.name, path)};
  });
  return tensors;
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
