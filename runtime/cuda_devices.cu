// cuda_devices.cu: device query through the CUDA runtime.
#include <cuda_runtime.h>

#include "runtime/cuda_devices.h"

namespace thimble {

std::vector<std::string> cuda_device_names() {
  int count = 0;
  // No driver and no device are answers here, not errors.
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return {};
  }
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    names.push_back(std::string(properties.name) + " (compute capability " + std::to_string(properties.major) + "." +
                    std::to_string(properties.minor) + ", " + std::to_string(properties.totalGlobalMem) + " B)");
  }
  return names;
}

std::string cuda_runtime_version() {
  return std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 1000 / 10);
}

}  // namespace thimble
