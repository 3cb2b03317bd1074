// device_copy.h: a matrix in device memory for kernel tests, with NaN before and after it, so that a read outside it
// poisons the result and a write outside it is found. Of float32, or of bf16 to which its elements are rounded.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/cuda/kernels/cuda_float_matrix.cuh"

namespace thimble {

template <typename T>
class BasicDeviceCopy {
 public:
  // `guard` NaN on either side: a multiple of 8 keeps the elements aligned to 16 bytes.
  explicit BasicDeviceCopy(const Matrix& values, int64_t guard = 7) : rows_(values.rows()), columns_(values.cols()) {
    guard_ = static_cast<size_t>(guard);
    std::vector<T> all(values.values().size() + 2 * guard_, T(std::numeric_limits<float>::quiet_NaN()));
    std::transform(values.values().begin(), values.values().end(), all.begin() + static_cast<int64_t>(guard_),
                   [](float value) { return T(value); });
    data_ = DeviceArray<T>(std::span<const T>(all));
  }
  // All NaN: an operation must write every element.
  static BasicDeviceCopy poisoned(int64_t rows, int64_t columns, int64_t guard = 7) {
    Matrix values(rows, columns);
    for (float& value : values.values()) value = std::numeric_limits<float>::quiet_NaN();
    return BasicDeviceCopy(values, guard);
  }

  BasicCudaView<T> view() const { return {data_.data() + guard_, rows_, columns_}; }
  BasicCudaView<const T> const_view() const { return view(); }
  operator BasicCudaView<T>() const { return view(); }
  operator BasicCudaView<const T>() const { return view(); }
  T* data() const { return view().data; }

  // Waits for the device. A guard that is not NaN any more is a failure.
  Matrix download() const {
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    std::vector<T> stored(static_cast<size_t>(data_.count()));
    EXPECT_EQ(cudaMemcpy(stored.data(), data_.data(), data_.bytes(), cudaMemcpyDeviceToHost), cudaSuccess);
    std::vector<float> all;
    for (T value : stored) all.push_back(static_cast<float>(value));
    for (size_t i = 0; i < guard_; ++i) {
      EXPECT_TRUE(std::isnan(all[i])) << "written before the matrix";
      EXPECT_TRUE(std::isnan(all[all.size() - 1 - i])) << "written behind the matrix";
    }
    return Matrix(std::span<const float>(all).subspan(guard_, all.size() - 2 * guard_), rows_, columns_);
  }

 private:
  int64_t rows_, columns_;
  size_t guard_ = 0;
  DeviceArray<T> data_;
};

using DeviceCopy = BasicDeviceCopy<float>;
using Bf16DeviceCopy = BasicDeviceCopy<__nv_bfloat16>;

inline Matrix random_values(int64_t rows, int64_t columns, uint64_t seed, double low = -1, double high = 1) {
  Matrix values(rows, columns);
  for (size_t i = 0; i < values.values().size(); ++i)
    values.values()[i] = static_cast<float>(low + (high - low) * uniform_at(seed, 91, i));
  return values;
}

inline double largest_of(const Matrix& values) {
  double largest = 0;
  for (float value : values.values()) largest = std::max(largest, std::abs(static_cast<double>(value)));
  return largest;
}

// Every element within `tolerance` times the largest of `expected`. What cancels may be off by the rounding of what it
// was made of: inputs of about 1, hence the floor.
inline void expect_near(const Matrix& found, const Matrix& expected, double tolerance) {
  ASSERT_EQ(found.rows(), expected.rows());
  ASSERT_EQ(found.cols(), expected.cols());
  double allowed = tolerance * std::max(0.1, largest_of(expected));
  for (int64_t r = 0; r < expected.rows(); ++r)
    for (int64_t c = 0; c < expected.cols(); ++c)
      ASSERT_LE(std::abs(double{found(r, c)} - expected(r, c)), allowed)
          << "row " << r << " column " << c << ": " << found(r, c) << ", " << expected(r, c);
}

}  // namespace thimble
