// cuda_kept_memory.cuh: device memory that stays with the program when it is freed (keep_freed_memory()), for
// allocations of the same size to come: passes over a model are made and freed many times, and the driver takes up to
// milliseconds for each of their arrays, longer where several devices reach each other. Not here: counting for plans
// (cuda_context.cuh), which happens before.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>

#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {

class KeptMemory {
 public:
  // Of this program; lives as long as it does.
  static KeptMemory& instance();

  void keep(const CudaPlace& place);
  // On the current device; null: there is not enough. Another failure is a DeviceError.
  void* allocate(size_t bytes);
  // What allocate() returned, or null. Waits for the device, as cudaFree() does: what runs may still use it.
  void free(void* data) noexcept;
  // Of a device: freed, but not given back to the driver.
  uint64_t kept_bytes(int ordinal);

 private:
  // Of one device, arrays with pages of their own.
  struct OfDevice {
    bool keeps = false;
    bool has_limit = false;   // of the user: keeping must not take more than computing does
    uint64_t most_bytes = 0;  // that may be used and kept together
    uint64_t used_bytes = 0, kept_bytes = 0;
    std::multimap<uint64_t, void*> kept;  // by size
  };
  struct Block {
    int ordinal;
    uint64_t bytes;
  };

  void* take_kept(OfDevice& device, uint64_t bytes);
  void give_back(OfDevice& device, uint64_t most_kept);

  std::mutex mutex_;
  std::map<int, OfDevice> devices_;
  std::map<void*, Block> blocks_;  // in use, of devices that keep
};

}  // namespace thimble
