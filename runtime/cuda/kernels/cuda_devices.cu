// cuda_devices.cu: device query through the CUDA runtime.
#include "runtime/cuda/kernels/cuda_devices.h"

#include <stdlib.h>

#include <algorithm>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_kept_memory.cuh"

namespace thimble {
namespace {

// Rows of a batch per multiprocessor: eight tiles of 128, so that the tiles of every product come out even.
constexpr int64_t kRowsPerMultiprocessor = 1024;

}  // namespace

void ask_for_few_connections() { ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "2", /*overwrite=*/0); }

int cuda_device_count() {
  int count = 0;
  // No driver and no device are answers here, not errors.
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

std::vector<std::string> cuda_device_names() {
  std::vector<std::string> names;
  for (int i = 0, count = cuda_device_count(); i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    names.push_back(std::string(properties.name) + " (compute capability " + std::to_string(properties.major) + "." +
                    std::to_string(properties.minor) + ", " + std::to_string(properties.totalGlobalMem) + " B)");
  }
  return names;
}

uint64_t cuda_free_memory(int ordinal) {
  DeviceScope scope(ordinal);
  size_t free_bytes = 0, total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
  return free_bytes + KeptMemory::instance().kept_bytes(ordinal);
}

int64_t cuda_windows_per_batch(int ordinal, int64_t context) {
  DeviceScope scope(ordinal);
  return std::max<int64_t>(1, kRowsPerMultiprocessor * multiprocessors() / context);
}

std::string cuda_arithmetic(int ordinal) {
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, ordinal));
  return properties.name;
}

std::string cuda_runtime_version() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

}  // namespace thimble
