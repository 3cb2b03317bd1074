// device_arena.cu: see device_arena.cuh.
#include "gptq/statistics/device_arena.cuh"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void widen_kernel(const T* from, int64_t count, float* to) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(kThreads) + threadIdx.x;
  if (i < count) to[i] = static_cast<float>(from[i]);
}

template <typename T>
void widen(const void* from, int64_t count, float* to, cudaStream_t stream) {
  const LaunchShape shape{static_cast<unsigned>(divide_up(count, kThreads)), kThreads};
  launch_kernel(widen_kernel<T>, shape, stream, static_cast<const T*>(from), count, to);
}

}  // namespace

void upload_rows(float* to, const StoredMatrixView& from, void* staging, cudaStream_t stream) {
  if (from.dtype != DType::kF32 && from.dtype != DType::kF16 && from.dtype != DType::kBF16)
    throw Error(ExitCode::kInternal, "weights of a type that is not widened on devices");
  if (from.rows == 0 || from.cols == 0) return;
  const size_t size = dtype_bytes(from.dtype), row_bytes = static_cast<size_t>(from.cols) * size;
  void* const raw = from.is_float32() ? to : staging;
  check_cuda(cudaMemcpy2DAsync(raw, row_bytes, from.data, static_cast<size_t>(from.stride) * size, row_bytes,
                               static_cast<size_t>(from.rows), cudaMemcpyHostToDevice, stream));
  if (from.dtype == DType::kF16) widen<__half>(raw, from.rows * from.cols, to, stream);
  if (from.dtype == DType::kBF16) widen<__nv_bfloat16>(raw, from.rows * from.cols, to, stream);
}

}  // namespace thimble
