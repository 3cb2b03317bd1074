// device_values.cuh: what lies in device memory, in host memory, for tests of passes.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "runtime/cuda/cuda_node_rows.cuh"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {

// Waits for the device.
template <typename T>
Matrix download(const NodeRows<T>& rows) {
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  std::vector<T> stored(static_cast<size_t>(rows.rows * rows.columns));
  const size_t width = static_cast<size_t>(rows.columns) * sizeof(T);
  EXPECT_EQ(cudaMemcpy2D(stored.data(), width, rows.data, static_cast<size_t>(rows.stride) * sizeof(T), width,
                         static_cast<size_t>(rows.rows), cudaMemcpyDeviceToHost),
            cudaSuccess);
  Matrix values(rows.rows, rows.columns);
  for (size_t i = 0; i < stored.size(); ++i) values.values()[i] = static_cast<float>(stored[i]);
  return values;
}

template <typename T>
Matrix download(BasicCudaView<T> view) {
  using Value = std::remove_const_t<T>;
  return download(NodeRows<Value>{const_cast<Value*>(view.data), view.rows, view.columns, view.stride, view.columns});
}

// Without what pads its heads.
inline Matrix without_padding(const Matrix& padded, int64_t head, int64_t padded_head) {
  Matrix values(padded.rows(), padded.cols() / padded_head * head);
  for (int64_t r = 0; r < values.rows(); ++r)
    for (int64_t c = 0; c < values.cols(); ++c) values(r, c) = padded(r, c / head * padded_head + c % head);
  return values;
}

}  // namespace thimble
