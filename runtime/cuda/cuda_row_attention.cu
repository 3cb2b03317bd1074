// cuda_row_attention.cu: a CTA of four warps for each row and head. Warp w takes keys w, w + 4, ...; sums over keys are
// per warp, then over warps in order.
#include "runtime/cuda/cuda_row_attention.cuh"

#include <string>

#include "runtime/base/error.h"
#include "runtime/cuda/kernels/cuda_context.cuh"

namespace thimble {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr float kMinValueNorm = 1e-12f;

struct SumOfTwo {
  __device__ float operator()(float a, float b) const { return a + b; }
};
struct LargerOfTwo {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};

// Every thread's value, joined: within warps, then warp by warp. `shared`: kWarps floats, free when all have come here.
template <typename Join>
__device__ float over_block(float value, float* shared, const Join& join) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value = join(value, __shfl_xor_sync(~0u, value, distance));
  __syncthreads();
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = value;
  __syncthreads();
  value = shared[0];
  for (int w = 1; w < kWarps; ++w) value = join(value, shared[w]);
  return value;
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    row_attention_kernel(const __grid_constant__ RowAttention<T> a, RowPositions positions) {
  extern __shared__ float memory[];
  __shared__ float joined[kWarps];
  const int64_t row = blockIdx.x, head = blockIdx.y, d = a.shape.head_dim;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int keys = positions.position(row) + 1;
  const int64_t group = head / (a.shape.heads / a.shape.kv_heads), stride = 2 * a.shape.kv_heads * a.padded;
  const T* key = a.cache + positions.sequence(row) * a.capacity * stride + group * a.padded;
  const T* value = key + a.shape.kv_heads * a.padded;
  float *q = memory, *partial = q + d, *weights = partial + kWarps * d;
  for (int64_t c = threadIdx.x; c < d; c += kThreads)
    q[c] = to_float(a.query.data[row * a.query.stride + head * d + c]);
  __syncthreads();

  float peak = -INFINITY;
  for (int j = warp; j < keys; j += kWarps) {
    float score = 0;
    for (int64_t c = lane; c < d; c += 32) score = fmaf(q[c], to_float(key[j * stride + c]), score);
    score = a.scores(sum_over_lanes<32>(score));
    if (lane == 0) weights[j] = score;
    peak = fmaxf(peak, score);
  }
  peak = over_block(peak, joined, LargerOfTwo{});
  float sum = 0;
  for (int j = static_cast<int>(threadIdx.x); j < keys; j += kThreads) {
    const float e = expf((weights[j] - peak) * a.shape.scale);
    weights[j] = e;
    sum += e;
  }
  const float inverse_sum = 1 / over_block(sum, joined, SumOfTwo{});
  for (int j = static_cast<int>(threadIdx.x); j < keys; j += kThreads) weights[j] = a.weights(weights[j] * inverse_sum);
  __syncthreads();
  for (int64_t c = lane; c < d; c += 32) {
    float y = 0;
    for (int j = warp; j < keys; j += kWarps) y = fmaf(weights[j], to_float(value[j * stride + c]), y);
    partial[warp * d + c] = y;
  }
  __syncthreads();

  // One warp from here on: y, less its component along the own position's value.
  if (warp > 0) return;
  const T* own = value + static_cast<int64_t>(keys - 1) * stride;
  float along = 0, squares = 0;
  for (int64_t c = lane; c < d; c += 32) {
    float y = partial[c];
    for (int w = 1; w < kWarps; ++w) y += partial[w * d + c];
    partial[c] = y;
    const float v = to_float(own[c]);
    along += y * v;
    squares += v * v;
  }
  float removed = 0;
  if (a.shape.exclusive) {
    const float norm = sqrtf(sum_over_lanes<32>(squares)), inverse = 1 / (norm > kMinValueNorm ? norm : kMinValueNorm);
    removed = sum_over_lanes<32>(along) * inverse * inverse;
  }
  T* out = a.output.data + row * a.output.stride;
  for (int64_t c = lane; c < d; c += 32)
    out[head * d + c] = from_float<T>(a.rounding(partial[c] - removed * to_float(own[c])));
  if (head + 1 < a.shape.heads) return;
  for (int64_t c = a.output.columns + lane; c < a.output.padded; c += 32) out[c] = from_float<T>(0.0f);
}

}  // namespace

template <typename T>
void launch_row_attention(const RowAttention<T>& attention, const RowPositions& positions, int64_t most_keys,
                          cudaStream_t stream) {
  if (attention.query.rows == 0) return;
  const int64_t floats = (1 + kWarps) * attention.shape.head_dim + most_keys;
  int device = 0, most = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  constexpr int64_t kOwn = 1024;  // static, and the driver's
  if (floats * static_cast<int64_t>(sizeof(float)) + kOwn > most)
    throw DeviceError("CUDA: attention whose scores are rounded over " + std::to_string(most_keys) +
                      " positions; shared memory of " + std::to_string(most) + " B holds fewer");
  const dim3 grid(static_cast<unsigned>(attention.query.rows), static_cast<unsigned>(attention.shape.heads));
  launch_kernel(row_attention_kernel<T>, {grid, kThreads, static_cast<int>(floats * sizeof(float))}, stream, attention,
                positions);
}

template void launch_row_attention(const RowAttention<float>&, const RowPositions&, int64_t, cudaStream_t);
template void launch_row_attention(const RowAttention<__nv_bfloat16>&, const RowPositions&, int64_t, cudaStream_t);
template void launch_row_attention(const RowAttention<__half>&, const RowPositions&, int64_t, cudaStream_t);

}  // namespace thimble
