// cuda_float_gradients.cu: the operations of a backward pass, a warp per row. The formulas are derived in
// cpu_gradient_kernels.cpp.
#include "runtime/cuda/cuda_float_ops.cuh"
#include "runtime/cuda/kernels/cuda_float_product.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

// dx may be dy.
struct ScaleBackward {
  const float *dy, *scale;
  float* dx;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) dx[row * columns + c] = dy[row * columns + c] * scale[c];
  }
};

struct RmsNormBackward {
  const float* x;
  float c;
  const float* dy;
  float* dx;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    const float *from = x + row * columns, *gradient = dy + row * columns;
    float s = inverse_rms(from, columns, lane);
    float dot = sum_over_row(columns, lane, [&](int64_t i) { return from[i] * gradient[i]; });
    float along = s * s * (dot / static_cast<float>(columns));
    for (int64_t i = lane; i < columns; i += 32) dx[row * columns + i] += (c * s) * (gradient[i] - along * from[i]);
  }
};

struct LeakyReluSquaredBackward {
  const float* z;
  float* dy;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) {
      float value = z[row * columns + c];
      dy[row * columns + c] *= value > 0 ? 2 * value : 0.5f * value;
    }
  }
};

// A row is one head of one position. The two elements of a rotating pair belong to one lane, which overwrites them.
struct NormAndRotateBackward {
  const float* x;
  HeadRotation rotation;
  const float* gain;  // may be null
  int64_t heads;
  float* dy;

  __device__ void operator()(int64_t row, int lane) const {
    int64_t d = rotation.head_dim, half = rotation.half;
    const float* from = x + row * d;
    float* gradient = dy + row * d;
    const float2* angles = rotation.angles + row / heads % rotation.positions * half;
    float dot = 0;
    for (int64_t k = lane; k < half; k += 32) {
      float first = gradient[k], second = gradient[half + k];
      gradient[k] = first * angles[k].x - second * angles[k].y;
      gradient[half + k] = first * angles[k].y + second * angles[k].x;
      dot += from[k] * gradient[k] + from[half + k] * gradient[half + k];
    }
    for (int64_t c = 2 * half + lane; c < d; c += 32) dot += from[c] * gradient[c];
    dot = sum_over_lanes<32>(dot);
    float s = inverse_rms(from, d, lane), along = s * s * (dot / static_cast<float>(d));
    float factor = s * (gain ? gain[row % heads] : 1.0f);
    auto through_norm = [&](int64_t c) { gradient[c] = factor * (gradient[c] - along * from[c]); };
    for (int64_t k = lane; k < half; k += 32) {
      through_norm(k);
      through_norm(half + k);
    }
    for (int64_t c = 2 * half + lane; c < d; c += 32) through_norm(c);
  }
};

struct SmearBackward {
  const float *dy, *gate;
  int64_t positions;
  float* dx;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    bool is_last = row % positions == positions - 1;
    for (int64_t c = lane; c < columns; c += 32) {
      float next = is_last ? 0 : dy[(row + 1) * columns + c];
      dx[row * columns + c] = (1 - gate[c]) * dy[row * columns + c] + gate[c] * next;
    }
  }
};

struct SmearGateDirection {
  const float* x;
  int64_t positions;
  float* out;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    bool is_first = row % positions == 0;
    for (int64_t c = lane; c < columns; c += 32)
      out[row * columns + c] = (is_first ? 0 : x[(row - 1) * columns + c]) - x[row * columns + c];
  }
};

struct SkipGateDirection {
  const float *previous, *skip, *weight;
  float* out;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32)
      out[row * columns + c] = previous[row * columns + c] - weight[c] * skip[row * columns + c];
  }
};

}  // namespace

void CudaFloatOps::linear_backward(ConstCudaView dy, ConstCudaView w, CudaView dx) const {
  launch_product(ProductForm::kNN, dy, w, dx, /*add=*/false, {}, ProductPart::kWhole, stream_);
}

void CudaFloatOps::linear_backward_add(ConstCudaView dy, ConstCudaView w, CudaView dx) const {
  launch_product(ProductForm::kNN, dy, w, dx, /*add=*/true, {}, ProductPart::kWhole, stream_);
}

void CudaFloatOps::scale_backward(ConstCudaView dy, const float* scale, CudaView dx) const {
  launch_rows(dy.rows, ScaleBackward{dy.data, scale, dx.data, dy.columns}, stream_);
}

void CudaFloatOps::rms_norm_backward(ConstCudaView x, float c, ConstCudaView dy, CudaView dx) const {
  launch_rows(x.rows, RmsNormBackward{x.data, c, dy.data, dx.data, x.columns}, stream_);
}

void CudaFloatOps::leaky_relu_squared_backward(ConstCudaView z, CudaView dy) const {
  launch_rows(z.rows, LeakyReluSquaredBackward{z.data, dy.data, z.columns}, stream_);
}

void CudaFloatOps::norm_and_rotate_backward(ConstCudaView x, const HeadRotation& rotation, const float* gain,
                                            CudaView dy) const {
  int64_t heads = x.columns / rotation.head_dim;
  launch_rows(x.rows * heads, NormAndRotateBackward{x.data, rotation, gain, heads, dy.data}, stream_);
}

void CudaFloatOps::smear_backward(ConstCudaView dy, const float* gate, int64_t positions, CudaView dx) const {
  launch_rows(dy.rows, SmearBackward{dy.data, gate, positions, dx.data, dy.columns}, stream_);
}

void CudaFloatOps::smear_gate_direction(ConstCudaView x, int64_t positions, CudaView out) const {
  launch_rows(x.rows, SmearGateDirection{x.data, positions, out.data, x.columns}, stream_);
}

void CudaFloatOps::skip_gate_direction(ConstCudaView previous, ConstCudaView skip, const float* weight,
                                       CudaView out) const {
  launch_rows(skip.rows, SkipGateDirection{previous.data, skip.data, weight, out.data, skip.columns}, stream_);
}

}  // namespace thimble
