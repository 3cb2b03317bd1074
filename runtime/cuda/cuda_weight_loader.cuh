// cuda_weight_loader.cuh: matrices from host memory into the kernels' layout. They travel through page-locked buffers
// as they are stored, and are widened, rounded and put in place by the device while the next ones travel.
#pragma once

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/tensor/rounding.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

// Where an axis's indices go: plain, or heads of `head` indices spread to `padded`, the first 2 * rotated of each
// interleaved.
struct AxisMap {
  int head = 1, padded = 1, rotated = 0;

  __host__ __device__ int64_t operator()(int64_t index) const {
    int within = static_cast<int>(index % head);
    if (within < rotated)
      within = 2 * within;
    else if (within < 2 * rotated)
      within = 2 * (within - rotated) + 1;
    return index / head * padded + within;
  }
};

// Where rows [first_source, first_source + rows) of a matrix go.
template <typename T>
struct CudaPlacement {
  T* out = nullptr;
  int64_t stride = 0, first_row = 0;
  AxisMap row_map, column_map;
  int64_t first_source = 0, rows = 0;
  const float* column_gains = nullptr;  // of the matrix's columns, in device memory; null: 1

  __device__ void store(int64_t row, int64_t column, float value) const {
    if (column_gains) value *= column_gains[column];
    out[(first_row + row_map(row)) * stride + column_map(column)] = from_float<T>(value);
  }
};

template <typename T>
class CudaWeightLoader {
 public:
  // On the current device.
  CudaWeightLoader();
  ~CudaWeightLoader();
  CudaWeightLoader(const CudaWeightLoader&) = delete;
  CudaWeightLoader& operator=(const CudaWeightLoader&) = delete;

  // Enqueues the placement's rows of `matrix`, rounded. The matrix may go when the call returns.
  void place(const StoredMatrixView& matrix, const Rounding& rounding, const CudaPlacement<T>& to);
  // Waits until all is in place.
  void finish() { stream_.wait(); }

 private:
  // Enqueues rows [first, first + count) of the placement's.
  void place_piece(const StoredMatrixView& matrix, const Rounding& rounding, const CudaPlacement<T>& to, int64_t first,
                   int64_t count);

  // One piece on its way. Two take turns: the host fills one while the device reads the other.
  struct Slot {
    PinnedArray<std::byte> host;
    DeviceArray<std::byte> device;
    CudaEvent free;
  };

  CudaStream stream_;
  Slot slots_[2];
  int next_ = 0;
};

}  // namespace thimble
