// cuda_kept_memory.cu: see cuda_kept_memory.cuh.
#include "runtime/cuda/kernels/cuda_kept_memory.cuh"

#include <algorithm>
#include <iterator>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/tensor/host_device.h"

namespace thimble {
namespace {

// Without a limit a device may keep this share of its memory, however little of it was in use so far.
constexpr uint64_t kKeptShare = 16;

// Null: there is not enough.
void* allocate_from_driver(size_t bytes) {
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation)
    cudaGetLastError();
  else
    check_cuda(status);
  return data;
}

}  // namespace

KeptMemory& KeptMemory::instance() {
  static auto& memory = *new KeptMemory;  // outlives static arrays
  return memory;
}

void KeptMemory::keep(const CudaPlace& place) {
  const std::scoped_lock lock(mutex_);
  OfDevice& device = devices_[place.ordinal];
  device.keeps = true;
  device.has_limit = place.memory_limit_bytes != kNoMemoryLimit;
}

void* KeptMemory::allocate(size_t bytes) {
  if (bytes <= kMostSharedBytes) return allocate_from_driver(bytes);
  int ordinal = 0;
  check_cuda(cudaGetDevice(&ordinal));
  const std::scoped_lock lock(mutex_);
  OfDevice& device = devices_[ordinal];
  if (!device.keeps) return allocate_from_driver(bytes);
  const auto pages = static_cast<uint64_t>(round_up(static_cast<int64_t>(bytes), int64_t{kPageBytes}));
  if (device.most_bytes == 0 && !device.has_limit) {
    size_t free_bytes = 0, total_bytes = 0;
    check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
    device.most_bytes = total_bytes / kKeptShare;
  }
  void* data = take_kept(device, pages);
  if (!data) {
    const uint64_t used = device.used_bytes + pages, most = std::max(device.most_bytes, used);
    give_back(device, most - used);
    data = allocate_from_driver(pages);
    if (!data && device.kept_bytes > 0) {
      give_back(device, 0);
      data = allocate_from_driver(pages);
    }
    if (!data) return nullptr;
    device.most_bytes = most;
  }
  device.used_bytes += pages;
  blocks_[data] = {ordinal, pages};
  return data;
}

void KeptMemory::free(void* data) noexcept {
  if (!data) return;
  std::unique_lock lock(mutex_);
  const auto found = blocks_.find(data);
  if (found == blocks_.end()) {
    lock.unlock();
    cudaFree(data);
    return;
  }
  const auto [ordinal, bytes] = found->second;
  blocks_.erase(found);
  lock.unlock();
  int previous = 0;  // errors are found by the next that computes there
  cudaGetDevice(&previous);
  if (previous != ordinal) cudaSetDevice(ordinal);
  cudaDeviceSynchronize();
  if (previous != ordinal) cudaSetDevice(previous);
  lock.lock();
  OfDevice& device = devices_[ordinal];
  device.used_bytes -= bytes;
  device.kept_bytes += bytes;
  device.kept.emplace(bytes, data);
}

uint64_t KeptMemory::kept_bytes(int ordinal) {
  const std::scoped_lock lock(mutex_);
  return devices_[ordinal].kept_bytes;
}

// Null: none of this size.
void* KeptMemory::take_kept(OfDevice& device, uint64_t bytes) {
  const auto found = device.kept.find(bytes);
  if (found == device.kept.end()) return nullptr;
  void* data = found->second;
  device.kept.erase(found);
  device.kept_bytes -= bytes;
  return data;
}

// To the driver, until no more than `most_kept` is kept; the largest first, which are few.
void KeptMemory::give_back(OfDevice& device, uint64_t most_kept) {
  while (device.kept_bytes > most_kept) {
    const auto largest = std::prev(device.kept.end());
    cudaFree(largest->second);
    device.kept_bytes -= largest->first;
    device.kept.erase(largest);
  }
}

void keep_freed_memory(const CudaPlace& place) { KeptMemory::instance().keep(place); }

}  // namespace thimble
