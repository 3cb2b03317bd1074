// tensor.cpp: texts of shapes, transposes and conversions of tensors.
#include "runtime/tensor/tensor.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/checked.h"
#include "runtime/base/parallel.h"

namespace thimble {

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (int64_t dimension : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(dimension);
  return text + "]";
}

uint64_t tensor_bytes_or_throw(DType dtype, const Shape& shape, const std::string& where) {
  return mul_or_throw(element_count_or_throw(shape, where), dtype_bytes(dtype), where);
}

Tensor transposed(const TensorView& matrix) {
  constexpr int64_t kTile = 32;  // so that reads and writes both stay within few cache lines
  const int64_t rows = matrix.shape.at(0), cols = matrix.shape.at(1);
  const size_t width = dtype_bytes(matrix.dtype);
  Tensor out{matrix.dtype, {cols, rows}, ByteVector(matrix.bytes.size())};
  for (int64_t first_row = 0; first_row < rows; first_row += kTile)
    for (int64_t first_col = 0; first_col < cols; first_col += kTile)
      for (int64_t r = first_row; r < std::min(rows, first_row + kTile); ++r)
        for (int64_t c = first_col; c < std::min(cols, first_col + kTile); ++c)
          std::memcpy(out.bytes.data() + static_cast<size_t>(c * rows + r) * width,
                      matrix.bytes.data() + static_cast<size_t>(r * cols + c) * width, width);
  return out;
}

FloatTensors float_tensors(const TensorMap& tensors) {
  FloatTensors values;
  std::vector<std::pair<const TensorView*, std::vector<float>*>> conversions;
  for (const auto& [name, tensor] : tensors) conversions.emplace_back(&tensor, &values[name]);
  parallel_for(static_cast<int64_t>(conversions.size()), [&](int64_t i) {
    const auto& [from, to] = conversions[static_cast<size_t>(i)];
    *to = to_float32(*from);
  });
  return values;
}

}  // namespace thimble
