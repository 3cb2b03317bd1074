// cuda_finite.cu: the smallest index is the same whatever order threads come in.
#include "runtime/cuda/cuda_finite.cuh"

#include <cassert>

namespace thimble {
namespace {

constexpr int kThreads = 256;
constexpr unsigned long long kAllFinite = ~0ull;

template <typename T>
__global__ void first_non_finite_kernel(const T* x, int64_t count, unsigned long long* first) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count && !isfinite(to_float(x[i]))) atomicMin(first, static_cast<unsigned long long>(i));
}

template <typename T>
__global__ void take_value_kernel(const T* x, const unsigned long long* first, float* value) {
  if (*first != kAllFinite) *value = to_float(x[*first]);
}

}  // namespace

template <typename T>
CudaFiniteObserver<T>::CudaFiniteObserver(int64_t inputs) : first_(inputs), value_(inputs) {
  check_cuda(cudaMemset(first_.data(), 0xff, first_.bytes()));
  check_cuda(cudaMemset(value_.data(), 0, value_.bytes()));
  check_cuda(cudaStreamSynchronize(nullptr));
}

template <typename T>
void CudaFiniteObserver<T>::on_linear_input(std::span<const std::string> weights, const T* x, int sequences,
                                            int positions, int columns, cudaStream_t stream) {
  auto slot = static_cast<int64_t>(inputs_.size()), count = int64_t{sequences} * positions * columns;
  assert(slot < first_.count());
  inputs_.push_back({linear_input_name(weights), columns});
  launch_kernel(first_non_finite_kernel<T>, {dim3(static_cast<unsigned>(divide_up(count, kThreads))), kThreads}, stream,
                x, count, first_.data() + slot);
  launch_kernel(take_value_kernel<T>, {dim3(1), 1}, stream, x, first_.data() + slot, value_.data() + slot);
}

template <typename T>
std::optional<NonFinite> CudaFiniteObserver<T>::found() const {
  std::vector<unsigned long long> first(inputs_.size());
  std::vector<float> value(inputs_.size());
  check_cuda(cudaMemcpy(first.data(), first_.data(), first.size() * sizeof(first[0]), cudaMemcpyDeviceToHost));
  check_cuda(cudaMemcpy(value.data(), value_.data(), value.size() * sizeof(value[0]), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < inputs_.size(); ++i) {
    auto at = static_cast<int64_t>(first[i]);
    if (first[i] != kAllFinite)
      return NonFinite{inputs_[i].name, {at / inputs_[i].columns, at % inputs_[i].columns}, value[i]};
  }
  return std::nullopt;
}

template class CudaFiniteObserver<float>;
template class CudaFiniteObserver<__nv_bfloat16>;
template class CudaFiniteObserver<__half>;

}  // namespace thimble
