// cuda_weight_loader.cu: one thread per element: reads it where it was stored, writes it where the kernels want it.
#include "runtime/cuda/cuda_weight_loader.cuh"

#include <algorithm>
#include <cassert>

namespace thimble {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPieceFloats = int64_t{1} << 20;  // of each of the two pieces that are on their way at a time

template <typename T>
__global__ void place_kernel(const float* source, int64_t rows, int64_t columns, int64_t first_row, Rounding rounding,
                             CudaPlacement<T> to) {
  int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < rows * columns) to.store(first_row + index / columns, index % columns, rounding(source[index]));
}

}  // namespace

template <typename T>
CudaWeightLoader<T>::CudaWeightLoader() {
  for (Slot& slot : slots_) {
    slot.host.reserve(kPieceFloats);
    slot.device.reserve(kPieceFloats, "weights");
  }
}

template <typename T>
CudaWeightLoader<T>::~CudaWeightLoader() {
  if (!counts_allocations()) cudaStreamSynchronize(stream_);
}

template <typename T>
void CudaWeightLoader<T>::place(const StoredMatrixView& matrix, const Rounding& rounding, const CudaPlacement<T>& to) {
  assert(to.first_source + to.rows <= matrix.rows);
  const int64_t columns = matrix.cols;
  const int64_t most_rows = std::max<int64_t>(1, kPieceFloats / columns);
  for (int64_t first = 0; first < to.rows; first += most_rows) {
    const int64_t count = std::min(most_rows, to.rows - first), elements = count * columns;
    Slot& slot = slots_[next_];
    next_ = 1 - next_;
    check_cuda(cudaEventSynchronize(slot.free));  // at once when nothing was recorded yet
    slot.host.reserve(elements);                  // of a row that is longer than a piece
    slot.device.reserve(elements);
    matrix.block_rows(to.first_source + first, count).read({slot.host.data(), count, columns});
    check_cuda(cudaMemcpyAsync(slot.device.data(), slot.host.data(), static_cast<size_t>(elements) * sizeof(float),
                               cudaMemcpyHostToDevice, stream_));
    launch_kernel(place_kernel<T>, {dim3(static_cast<unsigned>(divide_up(elements, kThreads))), kThreads}, stream_,
                  static_cast<const float*>(slot.device.data()), count, columns, first, rounding, to);
    check_cuda(cudaEventRecord(slot.free, stream_));
  }
}

template class CudaWeightLoader<float>;
template class CudaWeightLoader<__nv_bfloat16>;
template class CudaWeightLoader<__half>;

}  // namespace thimble
