// cuda_devices.h: which CUDA devices this build can see, and how one is named. A build without CUDA sees none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/memory_plan.h"

namespace thimble {

// One CUDA device, and how much of its memory may be used.
struct CudaPlace {
  CudaPlace(int device, uint64_t limit_bytes = kNoMemoryLimit) : ordinal(device), memory_limit_bytes(limit_bytes) {}
  int ordinal;
  uint64_t memory_limit_bytes;
};

// Asks the driver for two connections to each device, one for kernels and one for uploads beside them, where the
// environment doesn't say how many (CUDA_DEVICE_MAX_CONNECTIONS): a context of its eight takes twice as long to make
// and to leave. Streams that share a connection wait for each other. To be called before anything of the driver, and
// before other threads, which might read the environment meanwhile.
void ask_for_few_connections();

// How many, 0 without a driver; quicker than counting names.
int cuda_device_count();

// "NVIDIA H200 (compute capability 9.0, 150754820096 B)", one per device; empty without a driver or a device.
std::vector<std::string> cuda_device_names();

// Bytes of device memory that nobody uses, what this program keeps of it included. A DeviceError without such a device.
uint64_t cuda_free_memory(int ordinal);

// From now on large arrays that are freed stay with the program, for others of the same size, which the driver takes
// long to make. Those in use and those kept are together no more than have been in use at once, or without a limit than
// a sixteenth of the device's memory. Another program may miss what is kept: for a command that runs to its end.
void keep_freed_memory(const CudaPlace& place);

// What of it may be planned with: usable_memory() of memory_plan.h.
inline uint64_t usable_memory(const CudaPlace& place) {
  return usable_memory(cuda_free_memory(place.ordinal), place.memory_limit_bytes);
}

// Windows of `context` rows in a batch, if they fit: enough to fill the device many times over; more would only take
// memory.
int64_t cuda_windows_per_batch(int ordinal, int64_t context);

// The device's model, "NVIDIA H200": results are the same bits on all devices of one model. A DeviceError without such
// a device.
std::string cuda_arithmetic(int ordinal);

// The CUDA runtime version the build was made with ("13.0"), empty for a build without CUDA.
std::string cuda_runtime_version();

// Only in a build without CUDA, for what else needs a device: a DeviceError that says so.
[[noreturn]] void refuse_cuda();

}  // namespace thimble
