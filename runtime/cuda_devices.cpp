// cuda_devices.cpp: the answer of a build without CUDA.
#include "runtime/cuda_devices.h"

namespace thimble {

std::vector<std::string> cuda_device_names() { return {}; }

std::string cuda_runtime_version() { return ""; }

}  // namespace thimble
