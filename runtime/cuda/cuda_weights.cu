// cuda_weights.cu: one thread per element: reads it where it was stored, writes it where the kernels want it.
#include "runtime/cuda/cuda_weights.cuh"

#include <cuda_fp16.h>

#include <algorithm>
#include <cstring>

namespace thimble {
namespace {

constexpr int kThreads = 256;
// Of what is copied at once; more is cut into whole rows.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

__device__ float as_float(float value) { return value; }
__device__ float as_float(double value) { return __double2float_rn(value); }
__device__ float as_float(__half value) { return __half2float(value); }
__device__ float as_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename Source, typename T>
__global__ void place_elements_kernel(const Source* source, int64_t rows, int64_t columns, int64_t first_row,
                                      CudaPlacement<T> to) {
  int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index < rows * columns) to.store(first_row + index / columns, index % columns, as_float(source[index]));
}

// Neighbouring threads read neighbouring codes in the order in which they are stored; column-major ones are written
// with strides, which at two bytes a weight is cheap against their journey.
template <typename T>
__global__ void place_codes_kernel(CodeUnpacker unpacker, const uint8_t* data, int64_t first, int64_t columns,
                                   const uint16_t* row_scales, int block, int* bad_block, CudaPlacement<T> to) {
  int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= unpacker.count()) return;
  int code = 0;
  if (!unpacker.read(data, index, code)) atomicMin(bad_block, block);
  int64_t element = first + unpacker.place(index), row = element / columns;
  float scale = __half2float(__ushort_as_half(row_scales[row]));
  to.store(row, element % columns, static_cast<float>(code) * scale);  // exact in float32 (dequantize())
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>(divide_up(count, kThreads)); }

}  // namespace

template <typename T>
CudaWeightLoader<T>::CudaWeightLoader() : bad_block_(1) {
  for (Slot& slot : slots_) check_cuda(cudaEventCreateWithFlags(&slot.free, cudaEventDisableTiming));
  int none = kNone;
  check_cuda(cudaMemcpyAsync(bad_block_.data(), &none, sizeof(none), cudaMemcpyHostToDevice, stream_));
  stream_.wait();
}

template <typename T>
CudaWeightLoader<T>::~CudaWeightLoader() {
  cudaStreamSynchronize(stream_);
  for (Slot& slot : slots_) cudaEventDestroy(slot.free);
}

template <typename T>
const std::byte* CudaWeightLoader<T>::send(Bytes bytes) {
  Slot& slot = slots_[next_];
  check_cuda(cudaEventSynchronize(slot.free));  // at once when nothing was recorded yet
  auto capacity = std::max(static_cast<int64_t>(bytes.size()), kPieceBytes);
  slot.host.reserve(capacity);
  slot.device.reserve(capacity);
  std::memcpy(slot.host.data(), bytes.data(), bytes.size());
  check_cuda(cudaMemcpyAsync(slot.device.data(), slot.host.data(), bytes.size(), cudaMemcpyHostToDevice, stream_));
  return slot.device.data();
}

template <typename T>
void CudaWeightLoader<T>::release() {
  check_cuda(cudaGetLastError());
  check_cuda(cudaEventRecord(slots_[next_].free, stream_));
  next_ = 1 - next_;
}

template <typename T>
void CudaWeightLoader<T>::place(DType dtype, Bytes bytes, int64_t rows, int64_t columns, const CudaPlacement<T>& to) {
  if (bytes.empty()) return;
  auto row_bytes = columns * static_cast<int64_t>(dtype_bytes(dtype));
  int64_t most_rows = std::max<int64_t>(1, kPieceBytes / row_bytes);
  for (int64_t first = 0; first < rows; first += most_rows) {
    int64_t count = std::min(most_rows, rows - first);
    const std::byte* source =
        send(bytes.subspan(static_cast<size_t>(first * row_bytes), static_cast<size_t>(count * row_bytes)));
    auto launch = [&]<typename Source>(const Source* typed) {
      place_elements_kernel<<<blocks_for(count * columns), kThreads, 0, stream_>>>(typed, count, columns, first, to);
    };
    switch (dtype) {
      case DType::kF64: launch(reinterpret_cast<const double*>(source)); break;
      case DType::kF32: launch(reinterpret_cast<const float*>(source)); break;
      case DType::kF16: launch(reinterpret_cast<const __half*>(source)); break;
      case DType::kBF16: launch(reinterpret_cast<const __nv_bfloat16*>(source)); break;
      default: throw Error(ExitCode::kInternal, "weights of type " + std::string(dtype_name(dtype)));
    }
    release();
  }
}

template <typename T>
void CudaWeightLoader<T>::place(const HostCodes& codes, const uint16_t* row_scales, int block,
                                const CudaPlacement<T>& to) {
  if (codes.bytes.empty()) return;
  const auto* data = reinterpret_cast<const uint8_t*>(send(codes.bytes));
  place_codes_kernel<<<blocks_for(codes.unpacker.count()), kThreads, 0, stream_>>>(
      codes.unpacker, data, codes.first, codes.columns, row_scales, block, bad_block_.data(), to);
  release();
}

template <typename T>
int CudaWeightLoader<T>::finish() {
  int bad = kNone;
  check_cuda(cudaMemcpyAsync(&bad, bad_block_.data(), sizeof(bad), cudaMemcpyDeviceToHost, stream_));
  stream_.wait();
  return bad;
}

template class CudaWeightLoader<float>;
template class CudaWeightLoader<__nv_bfloat16>;

}  // namespace thimble
