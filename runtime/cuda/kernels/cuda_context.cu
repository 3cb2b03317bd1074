// cuda_context.cu: see cuda_context.cuh.
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_kept_memory.cuh"

namespace thimble {
namespace {

// Bytes by what they are for; null: allocations are made.
thread_local std::map<std::string, uint64_t>* counted = nullptr;

constexpr uint64_t kSharedUnit = 512;  // of pages that arrays share

// What one device copies from another goes through the host's memory until it may reach there, if it can.
void let_reach(int ordinal, int other) {
  static std::mutex mutex;
  static std::set<std::pair<int, int>> asked;
  const std::scoped_lock lock(mutex);
  if (!asked.emplace(ordinal, other).second) return;
  int can_reach = 0;
  check_cuda(cudaDeviceCanAccessPeer(&can_reach, ordinal, other));
  if (can_reach == 0) return;
  const DeviceScope scope(ordinal);
  if (const cudaError_t status = cudaDeviceEnablePeerAccess(other, 0);
      status == cudaErrorPeerAccessAlreadyEnabled || status == cudaErrorTooManyPeers)
    cudaGetLastError();  // somebody else's choice; or there is no way for more
  else
    check_cuda(status);
}

}  // namespace

std::vector<MemoryUse> counted_allocations(const std::function<void()>& body) {
  std::map<std::string, uint64_t> bytes = {{"workspace", kPageBytes}};  // the last page that is shared
  struct Scope {
    explicit Scope(std::map<std::string, uint64_t>* to) : previous(std::exchange(counted, to)) {}
    ~Scope() { counted = previous; }
    std::map<std::string, uint64_t>* previous;
  };
  {
    Scope scope(&bytes);
    body();
  }
  std::vector<MemoryUse> uses;
  for (const auto& [what, sum] : bytes) uses.push_back({what, sum});
  return uses;
}

bool counts_allocations() { return counted != nullptr; }

void check_cuda(cudaError_t status, std::source_location where) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // an error that is reported must not be found again by the next check
  throw DeviceError(std::string("CUDA: ") + cudaGetErrorString(status) + " (" + where.file_name() + ":" +
                    std::to_string(where.line()) + ")");
}

DeviceScope::DeviceScope(int ordinal) {
  check_cuda(cudaGetDevice(&previous_));
  if (ordinal != previous_) check_cuda(cudaSetDevice(ordinal));
}

DeviceScope::~DeviceScope() { cudaSetDevice(previous_); }

void copy_between_devices(void* to, int to_ordinal, const void* from, int from_ordinal, size_t bytes,
                          cudaStream_t stream) {
  if (to_ordinal != from_ordinal) {
    let_reach(to_ordinal, from_ordinal);
    let_reach(from_ordinal, to_ordinal);
  }
  check_cuda(cudaMemcpyPeerAsync(to, to_ordinal, from, from_ordinal, bytes, stream));
}

int multiprocessors() {
  int device = 0, count = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

int compute_capability() {
  int device = 0, major = 0, minor = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  check_cuda(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

LaunchConfig::LaunchConfig(const LaunchShape& shape, cudaStream_t stream) {
  config.gridDim = shape.grid;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = stream;
  config.attrs = attributes;
  if (shape.cluster > 1) {
    cudaLaunchAttribute& cluster = attributes[config.numAttrs++];
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  if (shape.overlaps && compute_capability() >= 90) {
    cudaLaunchAttribute& overlap = attributes[config.numAttrs++];
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
  }
}

void* allocate_device(size_t bytes, const char* what) {
  if (bytes == 0) return nullptr;
  if (counted) {
    const uint64_t unit = bytes > kMostSharedBytes ? kPageBytes : kSharedUnit;
    (*counted)[what] += (bytes + unit - 1) / unit * unit;
    return nullptr;
  }
  if (void* data = KeptMemory::instance().allocate(bytes)) return data;
  size_t free_bytes = 0, total_bytes = 0;
  check_cuda(cudaMemGetInfo(&free_bytes, &total_bytes));
  throw OutOfDeviceMemory("CUDA: out of device memory: " + std::to_string(bytes) + " B are needed, " +
                          std::to_string(free_bytes) + " B of " + std::to_string(total_bytes) + " B are free");
}

void free_device(void* data) { KeptMemory::instance().free(data); }

void* allocate_pinned(size_t bytes) {
  if (bytes == 0 || counted) return nullptr;
  void* data = nullptr;
  check_cuda(cudaMallocHost(&data, bytes));
  return data;
}

}  // namespace thimble
