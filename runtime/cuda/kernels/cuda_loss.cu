// cuda_loss.cu: one CTA per row of logits, which it reads three times.
#include "runtime/cuda/kernels/cuda_block_sums.cuh"
#include "runtime/cuda/kernels/cuda_loss.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

#include <cassert>

namespace thimble {
namespace {

constexpr int kThreads = kRowBlockThreads;

// max and ln sum exp(. - max) of a row whose elements are at(0) .. at(columns - 1).
struct LogSum {
  float peak, log_sum;

  template <typename At>
  __device__ LogSum(int64_t columns, const At& at) {
    peak = -INFINITY;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) peak = fmaxf(peak, at(c));
    peak = max_over_block(peak);
    float sum = 0;
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) sum += expf(at(c) - peak);
    log_sum = logf(sum_over_block(sum));
  }
  __device__ float log_probability(float logit) const { return logit - peak - log_sum; }
};

template <typename T>
__global__ void loss_backward_kernel(const float* z, int64_t columns, float cap, CudaTargets targets, T* dz,
                                     int64_t dz_stride, float* losses) {
  int64_t row = blockIdx.x;
  const float* from = z + row * columns;
  T* to = dz + row * dz_stride;
  float inverse_cap = cap == 0 ? 0.0f : 1.0f / cap;
  auto capped = [&](int64_t c) { return cap == 0 ? from[c] : cap * tanhf(from[c] * inverse_cap); };
  auto slope = [&](float l) { return 1.0f - (l * inverse_cap) * (l * inverse_cap); };
  LogSum student(columns, capped);
  if (targets.tokens) {
    int64_t token = targets.tokens[row];
    float loss = -student.log_probability(capped(token));
    __syncthreads();  // dz may be z: all have read what another overwrites
    for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
      float l = capped(c);
      to[c] = from_float<T>((expf(student.log_probability(l)) - (c == token ? 1.0f : 0.0f)) * slope(l));
    }
    if (threadIdx.x == 0) losses[row] = loss;
    return;
  }
  const float* teacher_row = targets.logits + row * columns;
  LogSum teacher(columns, [&](int64_t c) { return teacher_row[c]; });
  float divergence = 0;
  for (int64_t c = threadIdx.x; c < columns; c += kThreads) {
    float l = capped(c), log_p = student.log_probability(l), log_q = teacher.log_probability(teacher_row[c]);
    float q = expf(log_q);
    divergence += q * (log_q - log_p);
    to[c] = from_float<T>((expf(log_p) - q) * slope(l));
  }
  divergence = sum_over_block(divergence);
  if (threadIdx.x == 0) losses[row] = divergence;
}

}  // namespace

template <typename T>
void launch_loss_backward(ConstCudaView z, float cap, const CudaTargets& targets, BasicCudaView<T> dz, float* losses,
                          cudaStream_t stream) {
  assert(z.stride == z.columns);
  if (z.rows == 0) return;
  launch_kernel(loss_backward_kernel<T>, {dim3(static_cast<unsigned>(z.rows)), kThreads}, stream, z.data, z.columns,
                cap, targets, dz.data, dz.stride, losses);
}

template void launch_loss_backward(ConstCudaView, float, const CudaTargets&, BasicCudaView<float>, float*,
                                   cudaStream_t);
template void launch_loss_backward(ConstCudaView, float, const CudaTargets&, BasicCudaView<__nv_bfloat16>, float*,
                                   cudaStream_t);

}  // namespace thimble
