// cuda_float_matrix.cuh: dense row-major matrices in device memory, of float32 as matrix.h has them in host memory, or
// of what gradient passes store: an owner and two views.
#pragma once

#include <cuda_bf16.h>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/tensor/matrix.h"

namespace thimble {

// Row r starts at data + r * stride.
template <typename T>
struct BasicCudaView {
  T* data = nullptr;
  int64_t rows = 0, columns = 0, stride = 0;

  BasicCudaView() = default;
  BasicCudaView(T* d, int64_t r, int64_t c) : BasicCudaView(d, r, c, c) {}
  BasicCudaView(T* d, int64_t r, int64_t c, int64_t s) : data(d), rows(r), columns(c), stride(s) {}
  // A mutable view converts to a const one.
  template <typename U>
  requires std::is_same_v<const U, T> BasicCudaView(const BasicCudaView<U>& other)
      : data(other.data), rows(other.rows), columns(other.columns), stride(other.stride) {}

  int64_t count() const { return rows * columns; }
};

using CudaView = BasicCudaView<float>;
using ConstCudaView = BasicCudaView<const float>;
using Bf16View = BasicCudaView<__nv_bfloat16>;
using ConstBf16View = BasicCudaView<const __nv_bfloat16>;
// Not deduced from an argument, so that a mutable view may be one.
template <typename T>
using ConstCudaViewOf = BasicCudaView<const std::type_identity_t<T>>;

// Rows follow each other without gaps.
template <typename T>
class BasicCudaMatrix {
 public:
  BasicCudaMatrix() = default;
  // A copy of a matrix in host memory, on the current device.
  explicit BasicCudaMatrix(const Matrix& host) requires std::is_same_v<T, float> : rows_(host.rows()),
                                                                                   columns_(host.cols()) {
    if (!empty()) data_ = DeviceArray<float>(host.values());
  }

  // Contents are lost when the elements take more room than ever before.
  void resize(int64_t rows, int64_t columns) {
    data_.reserve(rows * columns);
    rows_ = rows;
    columns_ = columns;
  }
  bool empty() const { return rows_ * columns_ == 0; }
  BasicCudaView<T> view() { return {data_.data(), rows_, columns_}; }
  BasicCudaView<const T> view() const { return {data_.data(), rows_, columns_}; }
  operator BasicCudaView<T>() { return view(); }
  operator BasicCudaView<const T>() const { return view(); }

 private:
  int64_t rows_ = 0, columns_ = 0;
  DeviceArray<T> data_;
};

using CudaFloatMatrix = BasicCudaMatrix<float>;

}  // namespace thimble
