// cuda_weight_loader.cu: one thread per element: reads it as it was stored, writes it where the kernels want it.
#include "runtime/cuda/cuda_weight_loader.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cassert>
#include <cstring>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPieceBytes = int64_t{1} << 22;  // of each of the two pieces that are on their way at a time
constexpr int64_t kTaskBytes = int64_t{1} << 18;   // of a piece, that a thread copies at least

// Rows of a piece: factors of codes, of rows, gains and columns, then the values.
struct PieceLayout {
  int64_t row_factors = 0, gains = 0, column_factors = 0, values = 0, bytes = 0;  // where they begin, and the end

  PieceLayout(const StoredMatrixView& matrix, int64_t rows) {
    constexpr auto kFactorBytes = static_cast<int64_t>(sizeof(float));
    if (matrix.row_factors) {
      gains = rows * kFactorBytes;
      column_factors = 2 * gains;
      values = round_up(column_factors + matrix.cols * kFactorBytes, 16);
    }
    bytes = values + rows * matrix.cols * static_cast<int64_t>(dtype_bytes(matrix.dtype));
  }
};

// value(r, k) of stored_matrix.h. Factors are read of codes alone.
template <typename Stored>
struct PieceReader {
  const std::byte* piece;
  PieceLayout layout;
  int64_t columns;

  __device__ float operator()(int64_t row, int64_t column) const {
    const auto value =
        static_cast<float>(reinterpret_cast<const Stored*>(piece + layout.values)[row * columns + column]);
    if constexpr (!std::is_integral_v<Stored>) {
      return value;
    } else {
      const auto factor = [&](int64_t from, int64_t i) { return reinterpret_cast<const float*>(piece + from)[i]; };
      return __fmul_rn(
          __fmul_rn(__fmul_rn(value, factor(layout.row_factors, row)), factor(layout.column_factors, column)),
          factor(layout.gains, row));
    }
  }
};

template <typename T, typename Stored>
__global__ void place_kernel(PieceReader<Stored> read, int64_t rows, int64_t first_row, Rounding rounding,
                             CudaPlacement<T> to) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= rows * read.columns) return;
  const int64_t row = index / read.columns, column = index % read.columns;
  to.store(first_row + row, column, rounding(read(row, column)));
}

// Rows as they are stored, into page-locked memory.
void copy_rows(const StoredMatrixView& rows, const PieceLayout& layout, std::byte* piece) {
  if (rows.row_factors) {
    const size_t bytes = static_cast<size_t>(rows.rows) * sizeof(float);
    std::memcpy(piece + layout.row_factors, rows.row_factors, bytes);
    std::memcpy(piece + layout.gains, rows.gains, bytes);
    std::memcpy(piece + layout.column_factors, rows.column_factors, static_cast<size_t>(rows.cols) * sizeof(float));
  }
  const auto size = static_cast<int64_t>(dtype_bytes(rows.dtype)), row_bytes = rows.cols * size;
  const int64_t chunk = std::max<int64_t>(1, kTaskBytes / std::max<int64_t>(1, row_bytes));
  parallel_chunks(rows.rows, chunk, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      std::memcpy(piece + layout.values + r * row_bytes, rows.data + r * rows.stride * size,
                  static_cast<size_t>(row_bytes));
  });
}

}  // namespace

template <typename T>
CudaWeightLoader<T>::CudaWeightLoader() {
  for (Slot& slot : slots_) {
    slot.host.reserve(kPieceBytes);
    slot.device.reserve(kPieceBytes, "weights");
  }
}

template <typename T>
CudaWeightLoader<T>::~CudaWeightLoader() {
  if (!counts_allocations()) cudaStreamSynchronize(stream_);
}

template <typename T>
void CudaWeightLoader<T>::place(const StoredMatrixView& matrix, const Rounding& rounding, const CudaPlacement<T>& to) {
  assert(to.first_source + to.rows <= matrix.rows);
  const int64_t of_columns = PieceLayout(matrix, 0).bytes, of_a_row = PieceLayout(matrix, 1).bytes - of_columns + 16;
  const int64_t most_rows = std::max<int64_t>(1, (kPieceBytes - of_columns) / of_a_row);
  for (int64_t first = 0; first < to.rows; first += most_rows)
    place_piece(matrix, rounding, to, first, std::min(most_rows, to.rows - first));
}

template <typename T>
void CudaWeightLoader<T>::place_piece(const StoredMatrixView& matrix, const Rounding& rounding,
                                      const CudaPlacement<T>& to, int64_t first, int64_t count) {
  Slot& slot = slots_[next_];
  next_ = 1 - next_;
  const StoredMatrixView rows = matrix.block_rows(to.first_source + first, count);
  const PieceLayout layout(rows, count);
  check_cuda(cudaEventSynchronize(slot.free));  // at once when nothing was recorded yet
  slot.host.reserve(layout.bytes);              // of a row that is longer than a piece
  slot.device.reserve(layout.bytes);
  copy_rows(rows, layout, slot.host.data());
  check_cuda(cudaMemcpyAsync(slot.device.data(), slot.host.data(), static_cast<size_t>(layout.bytes),
                             cudaMemcpyHostToDevice, stream_));
  const auto launch = [&]<typename Stored>(Stored) {
    const LaunchShape shape{static_cast<unsigned>(divide_up(count * rows.cols, kThreads)), kThreads};
    launch_kernel(place_kernel<T, Stored>, shape, stream_, PieceReader<Stored>{slot.device.data(), layout, rows.cols},
                  count, first, rounding, to);
  };
  switch (rows.dtype) {
    case DType::kF32: launch(float()); break;
    case DType::kF16: launch(__half()); break;
    case DType::kBF16: launch(__nv_bfloat16()); break;
    case DType::kI16: launch(int16_t()); break;
    default: assert(rows.dtype == DType::kI8); launch(int8_t());
  }
  check_cuda(cudaEventRecord(slot.free, stream_));
}

template class CudaWeightLoader<float>;
template class CudaWeightLoader<__nv_bfloat16>;
template class CudaWeightLoader<__half>;

}  // namespace thimble
