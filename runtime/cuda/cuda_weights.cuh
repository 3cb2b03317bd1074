// cuda_weights.cuh: weights from host memory into the kernels' layout. They travel as they are stored (codes of a few
// bits, fp16, ...) through page-locked buffers, and are unpacked, dequantized, rounded to T and put in place by the
// device while the next ones travel.
#pragma once

#include <string>

#include "runtime/codes/code_layout.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/tensor/dtype.h"

namespace thimble {

// Where an axis's indices go: plain, or heads of `head` indices spread to `padded`, the first 2 * rotated of each
// interleaved.
struct AxisMap {
  int head = 1, padded = 1, rotated = 0;

  __device__ int64_t operator()(int64_t index) const {
    int within = static_cast<int>(index % head);
    if (within < rotated)
      within = 2 * within;
    else if (within < 2 * rotated)
      within = 2 * (within - rotated) + 1;
    return index / head * padded + within;
  }
};

// Where the elements of a matrix (R, K) go.
template <typename T>
struct CudaPlacement {
  T* out = nullptr;
  int64_t stride = 0, first_row = 0;
  AxisMap row_map, column_map;

  __device__ void store(int64_t row, int64_t column, float value) const {
    out[(first_row + row_map(row)) * stride + column_map(column)] = from_float<T>(value);
  }
};

// Codes that lie in host memory, of a matrix of `columns` columns.
struct HostCodes {
  CodeUnpacker unpacker;
  Bytes bytes;
  int64_t first = 0;    // row-major index of the first code in the matrix
  int64_t columns = 0;  // K
};

template <typename T>
class CudaWeightLoader {
 public:
  // On the current device.
  CudaWeightLoader();
  ~CudaWeightLoader();
  CudaWeightLoader(const CudaWeightLoader&) = delete;
  CudaWeightLoader& operator=(const CudaWeightLoader&) = delete;

  // Enqueues elements (rows, columns) of type F64, F32, F16 or BF16. `bytes` may go when the call returns.
  void place(DType dtype, Bytes bytes, int64_t rows, int64_t columns, const CudaPlacement<T>& to);
  // Enqueues code * row_scale. `row_scales`: of all rows of the matrix, IEEE fp16 bits in device memory, kept until
  // finish(). A block with a code that is not allowed puts anything there.
  void place(const HostCodes& codes, const uint16_t* row_scales, int block, const CudaPlacement<T>& to);

  static constexpr int kNone = 0x7fffffff;
  // Waits until all is in place. Returns the first block that has a code that is not allowed, else kNone.
  int finish();

 private:
  // One piece on its way. Two take turns: the host fills one while the device reads the other.
  struct Slot {
    PinnedArray<std::byte> host;
    DeviceArray<std::byte> device;
    cudaEvent_t free = nullptr;
  };
  // `bytes` in device memory, until the next release().
  const std::byte* send(Bytes bytes);
  void release();

  CudaStream stream_;
  Slot slots_[2];
  int next_ = 0;
  DeviceArray<int> bad_block_;
};

}  // namespace thimble
