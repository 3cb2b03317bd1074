// tensor.h: named tensors as they lie in a file (views) or in memory (owned), any dtype and rank.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/tensor/dtype.h"

namespace thimble {

using Shape = std::vector<int64_t>;  // empty for a scalar

std::string shape_text(const Shape& shape);  // "[512, 1792]"

// The shape must have been checked before.
inline int64_t element_count(const Shape& shape) {
  int64_t count = 1;
  for (int64_t dimension : shape) count *= dimension;
  return count;
}

// Bytes of a tensor whose shape comes from a file. `where` names it in the FormatError of a negative dimension and of
// more than 64 bits can hold.
uint64_t tensor_bytes_or_throw(DType dtype, const Shape& shape, const std::string& where);

// A tensor whose little-endian, contiguous, row-major bytes live elsewhere (a mapped checkpoint, say).
struct TensorView {
  DType dtype = DType::kF32;
  Shape shape;
  Bytes bytes;  // element_count(shape) * dtype_bytes(dtype)
};

using TensorMap = std::map<std::string, TensorView>;

// A tensor that owns its bytes.
struct Tensor {
  DType dtype = DType::kF32;
  Shape shape;
  ByteVector bytes;
  TensorView view() const { return {dtype, shape, bytes}; }
};

inline std::vector<float> to_float32(const TensorView& tensor) { return to_float32(tensor.dtype, tensor.bytes); }

// A matrix (rows, columns) as (columns, rows), any dtype.
Tensor transposed(const TensorView& matrix);

// Values of tensors by name.
using FloatTensors = std::map<std::string, std::vector<float>>;
FloatTensors float_tensors(const TensorMap& tensors);

}  // namespace thimble
