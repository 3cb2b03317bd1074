// device_arena.cuh: pieces of one allocation of device memory, and copies to and from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/tensor/host_device.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

// Hands out pieces of one allocation. Without memory it only counts.
class Arena {
 public:
  explicit Arena(std::byte* base) : base_(base) {}
  template <typename T>
  T* take(int64_t count) {
    size_t offset = bytes_;
    bytes_ += static_cast<size_t>(round_up(count * static_cast<int64_t>(sizeof(T)), 256));
    return base_ ? reinterpret_cast<T*>(base_ + offset) : nullptr;
  }
  size_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  size_t bytes_ = 0;
};

template <typename T>
void upload(T* to, std::span<const T> from, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(to, from.data(), from.size_bytes(), cudaMemcpyHostToDevice, stream));
}

template <typename T>
void download(std::span<T> to, const T* from, cudaStream_t stream) {
  check_cuda(cudaMemcpyAsync(to.data(), from, to.size_bytes(), cudaMemcpyDeviceToHost, stream));
}

// Values as they are stored, F32, F16 or BF16, widened. to: (rows, cols) without gaps. `staging`: as many bytes for
// those that are not F32; whatever else uses it must wait for the stream.
void upload_rows(float* to, const StoredMatrixView& from, void* staging, cudaStream_t stream);

}  // namespace thimble
