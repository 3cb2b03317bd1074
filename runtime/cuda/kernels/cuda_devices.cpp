// cuda_devices.cpp: the answer of a build without CUDA.
#include "runtime/cuda/kernels/cuda_devices.h"

#include "runtime/base/error.h"

namespace thimble {

void ask_for_few_connections() {}

int cuda_device_count() { return 0; }

std::vector<std::string> cuda_device_names() { return {}; }

uint64_t cuda_free_memory(int) { refuse_cuda(); }

void keep_freed_memory(const CudaPlace&) { refuse_cuda(); }

int64_t cuda_windows_per_batch(int, int64_t) { refuse_cuda(); }

std::string cuda_arithmetic(int) { refuse_cuda(); }

std::string cuda_runtime_version() { return ""; }

void refuse_cuda() { throw DeviceError("this build computes on the CPU only; use --device cpu"); }

}  // namespace thimble
