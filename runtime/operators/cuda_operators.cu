// cuda_operators.cu: launches of the operators, and the measurement of their time beside that of a plain copy.
#include "runtime/operators/cuda_operators.h"

#include <algorithm>
#include <cstddef>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/operators/operator_dispatch.h"
#include "runtime/operators/operator_kernels.cuh"

namespace thimble {
namespace {

struct CudaLaunch {
  cudaStream_t stream;

  template <typename Operation>
  void rows(const Operation& operation, int64_t rows) const {
    if (rows == 0) return;
    choose_row_kernel(operation, rows, [&](auto* kernel, int blocks, int threads) {
      launch_kernel(kernel, {dim3(static_cast<unsigned>(blocks)), threads}, stream, operation, rows);
    });
  }
  template <typename Operation>
  void elements(const Operation& operation) const {
    if (operation.count == 0) return;
    dim3 grid(static_cast<unsigned>(divide_up(operation.packs(), kOperatorThreads)));
    launch_kernel(element_operator_kernel<Operation>, {grid, kOperatorThreads}, stream, operation);
  }
};

constexpr size_t kCopyBytes = size_t{1} << 30;
constexpr size_t kBytesBeyondCaches = size_t{1} << 29;
constexpr int kMostCopies = 64, kCallsPerSample = 64, kSamples = 7;

// The median over samples of the seconds that one call of enqueue(i), i = 0, 1, ..., takes.
template <typename Enqueue>
double seconds_per_call(int calls, cudaStream_t stream, const Enqueue& enqueue) {
  struct Event {
    Event() { check_cuda(cudaEventCreate(&event)); }
    ~Event() { cudaEventDestroy(event); }
    cudaEvent_t event = nullptr;
  } begin, end;
  std::vector<double> samples;
  for (int sample = 0; sample <= kSamples; ++sample) {  // the first warms up
    check_cuda(cudaEventRecord(begin.event, stream));
    for (int i = 0; i < calls; ++i) enqueue(i);
    check_cuda(cudaEventRecord(end.event, stream));
    check_cuda(cudaEventSynchronize(end.event));
    float milliseconds = 0;
    check_cuda(cudaEventElapsedTime(&milliseconds, begin.event, end.event));
    if (sample > 0) samples.push_back(milliseconds * 1e-3 / calls);
  }
  std::ranges::nth_element(samples, samples.begin() + kSamples / 2);
  return samples[kSamples / 2];
}

// Four times 16 bytes per thread, all read before any is written.
__global__ void __launch_bounds__(kOperatorThreads) copy_kernel(const uint4* from, uint4* to) {
  constexpr int kReads = 4;
  size_t first = static_cast<size_t>(blockIdx.x) * kReads * kOperatorThreads + threadIdx.x;
  uint4 words[kReads];
#pragma unroll
  for (int i = 0; i < kReads; ++i) words[i] = from[first + i * kOperatorThreads];
#pragma unroll
  for (int i = 0; i < kReads; ++i) to[first + i * kOperatorThreads] = words[i];
}

// `count` elements of the host in device memory; none of a null pointer.
template <typename T>
DeviceArray<T> upload(const T* host, int64_t count) {
  return host ? DeviceArray<T>(std::span<const T>(host, static_cast<size_t>(count))) : DeviceArray<T>();
}

}  // namespace

void launch_operator(const OperatorCall& call, cudaStream_t stream) { dispatch_operator(call, CudaLaunch{stream}); }

double run_operator_on_cuda(int ordinal, const OperatorCall& call) {
  DeviceScope scope(ordinal);
  auto x_bytes = call.rows * call.cols * static_cast<int64_t>(dtype_bytes(call.in));
  auto y_bytes = call.output_count() * static_cast<int64_t>(dtype_bytes(call.out));
  DeviceArray<float> weight = upload(call.weight, call.cols), bias = upload(call.bias, call.cols),
                     scale = upload(call.scale, call.rows);
  DeviceArray<int32_t> targets = upload(call.targets, call.rows);
  // Every copy begins where packs may.
  int64_t x_stride = round_up(x_bytes, 256), y_stride = round_up(y_bytes, 256);
  auto copies = std::clamp<int64_t>(static_cast<int64_t>(kBytesBeyondCaches) / (x_stride + y_stride), 2, kMostCopies);
  DeviceArray<std::byte> x(copies * x_stride), y(copies * y_stride);
  for (int64_t i = 0; i < copies; ++i)
    check_cuda(cudaMemcpy(x.data() + i * x_stride, call.x, static_cast<size_t>(x_bytes), cudaMemcpyHostToDevice));
  check_cuda(cudaMemset(y.data(), 0xff, y.bytes()));
  check_cuda(cudaStreamSynchronize(nullptr));

  OperatorCall on_device = call;
  on_device.weight = weight.data();
  on_device.bias = bias.data();
  on_device.scale = scale.data();
  on_device.targets = targets.data();
  CudaStream stream;
  double seconds = seconds_per_call(kCallsPerSample, stream, [&](int i) {
    on_device.x = x.data() + i % copies * x_stride;
    on_device.y = y.data() + i % copies * y_stride;
    launch_operator(on_device, stream);
  });
  stream.wait();
  check_cuda(cudaMemcpy(call.y, y.data(), static_cast<size_t>(y_bytes), cudaMemcpyDeviceToHost));
  return seconds;
}

double cuda_copy_bandwidth(int ordinal) {
  DeviceScope scope(ordinal);
  constexpr int64_t kWords = kCopyBytes / sizeof(uint4);
  constexpr int kCalls = 4;
  DeviceArray<uint4> from(kWords), to(kWords);
  from.fill_zero();
  CudaStream stream;
  dim3 grid(static_cast<unsigned>(kWords / (4 * kOperatorThreads)));
  double seconds = seconds_per_call(kCalls, stream, [&](int) {
    launch_kernel(copy_kernel, {grid, kOperatorThreads}, stream, from.data(), to.data());
  });
  return 2.0 * static_cast<double>(kCopyBytes) / seconds;
}

}  // namespace thimble
