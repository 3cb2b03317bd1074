// cuda_context.cuh: errors, memory, streams and events of one CUDA device, as owning types. For .cu files only.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <functional>
#include <source_location>
#include <span>
#include <utility>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/memory_plan.h"

namespace thimble {

// Throws DeviceError naming the call's place and CUDA's own words. Out of memory says how much was free.
void check_cuda(cudaError_t status, std::source_location where = std::source_location::current());

// Makes a device current for a scope, and the earlier one again after it.
class DeviceScope {
 public:
  explicit DeviceScope(int ordinal);
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

// What the arrays take that the body makes, in the order of their names: while it runs, this thread's arrays are
// counted instead of allocated, streams and events are not made, and no device is touched. So whoever allocates all
// that he needs when he is constructed has a memory plan; constructors must not launch kernels on arrays without data.
std::vector<MemoryUse> counted_allocations(const std::function<void()>& body);
bool counts_allocations();  // on this thread, now

class CudaStream {
 public:
  CudaStream() {
    if (!counts_allocations()) check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  }
  ~CudaStream() {
    if (stream_) cudaStreamDestroy(stream_);
  }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const {
    if (stream_) check_cuda(cudaStreamSynchronize(stream_));
  }

 private:
  cudaStream_t stream_ = nullptr;
};

// Without times.
class CudaEvent {
 public:
  CudaEvent() {
    if (!counts_allocations()) check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming));
  }
  ~CudaEvent() {
    if (event_) cudaEventDestroy(event_);
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

// Enqueues a copy to one device's memory from that of another, or of the same, without the host where they can reach
// each other.
void copy_between_devices(void* to, int to_ordinal, const void* from, int from_ordinal, size_t bytes,
                          cudaStream_t stream);

int multiprocessors();  // of the current device

// Compute capability of the current device times ten: 90 for sm_90.
int compute_capability();

// How a kernel is launched: `cluster` neighbouring CTAs share their shared memory; `overlaps`: with the kernel before
// it (cuda_overlap.cuh), where the device can.
struct LaunchShape {
  dim3 grid;
  int threads;
  int shared_bytes = 0;
  int cluster = 1;
  bool overlaps = false;
};

struct LaunchConfig {
  LaunchConfig(const LaunchShape& shape, cudaStream_t stream);
  LaunchConfig(const LaunchConfig&) = delete;  // `config` points into it

  cudaLaunchAttribute attributes[2]{};
  cudaLaunchConfig_t config{};
};

// Launches a kernel, and checks that it was.
template <typename... Parameters, typename... Arguments>
void launch_kernel(void (*kernel)(Parameters...), const LaunchShape& shape, cudaStream_t stream,
                   const Arguments&... arguments) {
  if (shape.shared_bytes > 0)  // 48 KiB and more, static memory included, must be asked for
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes));
  LaunchConfig config(shape, stream);
  check_cuda(cudaLaunchKernelEx(&config.config, kernel, arguments...));
}

// Clusters of such a shape that the current device runs at once.
template <typename... Parameters>
int active_clusters(void (*kernel)(Parameters...), const LaunchShape& shape) {
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes));
  LaunchConfig config(shape, nullptr);
  int clusters = 0;
  check_cuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config.config));
  return clusters;
}

struct OutOfDeviceMemory : DeviceError {
  using DeviceError::DeviceError;
};

// Throws OutOfDeviceMemory that says how much was needed and how much is free. Null where it is only counted, as `what`
// in a memory plan.
void* allocate_device(size_t bytes, const char* what);
// What that returned. Waits until the device has done what it was given.
void free_device(void* data);
// Arrays of more than kMostSharedBytes have pages of their own, others share them.
constexpr uint64_t kPageBytes = uint64_t{2} << 20, kMostSharedBytes = uint64_t{1} << 20;
// Page-locked host memory, which copies need to overlap with kernels.
void* allocate_pinned(size_t bytes);

// body(batch) with the largest batch that finds enough memory, of `batch`, its half, and so on down to 1. A plan made
// the batch small enough; but others may have taken memory since.
template <typename Body>
auto with_smaller_batches(int64_t batch, const Body& body) {
  for (;; batch = (batch + 1) / 2) {
    try {
      return body(batch);
    } catch (const OutOfDeviceMemory&) {
      if (batch == 1) throw;
    }
  }
}

// Elements in device memory, not initialised. `what`: the name of such memory in plans.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(int64_t count, const char* what = "workspace")
      : data_(static_cast<T*>(allocate_device(static_cast<size_t>(count) * sizeof(T), what))), count_(count) {}
  explicit DeviceArray(std::span<const T> host, const char* what = "workspace")
      : DeviceArray(static_cast<int64_t>(host.size()), what) {
    copy(host);
  }
  DeviceArray(DeviceArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { free_device(data_); }

  // Room for `count` elements; contents are lost when it grows.
  void reserve(int64_t count, const char* what = "workspace") {
    if (count > count_) {
      *this = DeviceArray();  // first give back, so that old and new never coexist
      *this = DeviceArray(count, what);
    }
  }
  // The first elements, complete on return.
  void copy(std::span<const T> host) {
    if (!data_) return;
    check_cuda(cudaMemcpy(data_, host.data(), host.size_bytes(), cudaMemcpyHostToDevice));
    // cudaMemcpy() may return before the last bytes arrive, and streams of ours do not wait for the default one.
    check_cuda(cudaStreamSynchronize(nullptr));
  }
  // Zero bytes everywhere, complete on return.
  void fill_zero() {
    fill_bytes(0, nullptr);
    if (data_) check_cuda(cudaStreamSynchronize(nullptr));
  }
  // Enqueues it.
  void fill_bytes(int value, cudaStream_t stream) {
    if (data_) check_cuda(cudaMemsetAsync(data_, value, bytes(), stream));
  }
  T* data() const { return data_; }
  int64_t count() const { return count_; }
  size_t bytes() const { return static_cast<size_t>(count_) * sizeof(T); }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

// The same in page-locked host memory.
template <typename T>
class PinnedArray {
 public:
  PinnedArray() = default;
  explicit PinnedArray(int64_t count)
      : data_(static_cast<T*>(allocate_pinned(static_cast<size_t>(count) * sizeof(T)))), count_(count) {}
  PinnedArray(PinnedArray&& other) noexcept : data_(std::exchange(other.data_, nullptr)), count_(other.count_) {}
  PinnedArray& operator=(PinnedArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~PinnedArray() { cudaFreeHost(data_); }
  void reserve(int64_t count) {
    if (count > count_) *this = PinnedArray(count);
  }
  T* data() const { return data_; }
  int64_t count() const { return count_; }

 private:
  T* data_ = nullptr;
  int64_t count_ = 0;
};

// A list that is sent to device memory without waiting: from page-locked memory, which holds it until it is there.
class SentList {
 public:
  // Room for so many elements, to be written; waits for the list that was sent last.
  int32_t* reserve(int64_t count) {
    check_cuda(cudaEventSynchronize(is_sent_));
    host_.reserve(count);
    return host_.data();
  }
  // Enqueues a copy of the first ones.
  void send(int64_t count, int32_t* to, cudaStream_t stream) {
    check_cuda(cudaMemcpyAsync(to, host_.data(), static_cast<size_t>(count) * sizeof(int32_t), cudaMemcpyHostToDevice,
                               stream));
    check_cuda(cudaEventRecord(is_sent_, stream));
  }

 private:
  PinnedArray<int32_t> host_;
  CudaEvent is_sent_;
};

}  // namespace thimble
