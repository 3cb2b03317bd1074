// cuda_float_ops.cu: the operations of a forward pass, a warp per row.
#include "runtime/cuda/cuda_float_ops.cuh"
#include "runtime/cuda/kernels/cuda_float_product.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

struct GatherRows {
  const float* table;
  const int32_t* index;
  float* out;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    const float* from = table + index[row] * columns;
    for (int64_t c = lane; c < columns; c += 32) out[row * columns + c] = from[c];
  }
};

struct AddScaled {
  const float* a;
  float scale;
  float* x;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) x[row * columns + c] += scale * a[row * columns + c];
  }
};

struct RmsNorm {
  const float* x;
  float c;
  float* y;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    const float* from = x + row * columns;
    float factor = inverse_rms(from, columns, lane) * c;
    for (int64_t i = lane; i < columns; i += 32) y[row * columns + i] = from[i] * factor;
  }
};

struct Smear {
  const float *x, *gate;
  int64_t positions;
  float* out;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    bool is_first = row % positions == 0;
    for (int64_t c = lane; c < columns; c += 32) {
      float before = is_first ? 0 : x[(row - 1) * columns + c];
      out[row * columns + c] = (1 - gate[c]) * x[row * columns + c] + gate[c] * before;
    }
  }
};

struct AddSkip {
  const float *skip, *weight, *gate;  // gate may be null
  float* x;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) {
      float weighted = weight[c] * skip[row * columns + c], &value = x[row * columns + c];
      value = gate ? (1 - gate[c]) * weighted + gate[c] * value : weighted + value;
    }
  }
};

struct Mix {
  const float *x, *x0, *mix_x, *mix_x0;
  float* u;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32)
      u[row * columns + c] = mix_x[c] * x[row * columns + c] + mix_x0[c] * x0[row * columns + c];
  }
};

struct Add {
  const float *a, *scale;
  float* x;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) x[row * columns + c] += scale[c] * a[row * columns + c];
  }
};

// A row is one head of one position. The two elements of a rotating pair belong to one lane: y may be x.
struct NormAndRotate {
  const float* x;
  HeadRotation rotation;
  const float* gain;  // may be null
  int64_t heads;
  float* y;

  __device__ void operator()(int64_t row, int lane) const {
    int64_t d = rotation.head_dim, half = rotation.half;
    const float* from = x + row * d;
    float* to = y + row * d;
    float factor = inverse_rms(from, d, lane) * (gain ? gain[row % heads] : 1.0f);
    const float2* angles = rotation.angles + row / heads % rotation.positions * half;
    for (int64_t k = lane; k < half; k += 32) {
      float first = from[k] * factor, second = from[half + k] * factor;
      to[k] = first * angles[k].x + second * angles[k].y;
      to[half + k] = second * angles[k].x - first * angles[k].y;
    }
    for (int64_t c = 2 * half + lane; c < d; c += 32) to[c] = from[c] * factor;
  }
};

struct LeakyReluSquared {
  const float* z;
  float* y;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) {
      float value = z[row * columns + c], leaky = fmaxf(value, 0.5f * value);
      y[row * columns + c] = leaky * leaky;
    }
  }
};

struct Softcap {
  const float* x;
  float cap;
  float* y;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32)
      y[row * columns + c] = cap * tanhf(x[row * columns + c] * (1.0f / cap));
  }
};

}  // namespace

void CudaFloatOps::copy(ConstCudaView from, CudaView to) const {
  check_cuda(cudaMemcpyAsync(to.data, from.data, static_cast<size_t>(from.count()) * sizeof(float),
                             cudaMemcpyDeviceToDevice, stream_));
}

void CudaFloatOps::fill_zero(CudaView x) const {
  check_cuda(cudaMemsetAsync(x.data, 0, static_cast<size_t>(x.count()) * sizeof(float), stream_));
}

void CudaFloatOps::gather_rows(ConstCudaView table, const int32_t* index, CudaView out) const {
  launch_rows(out.rows, GatherRows{table.data, index, out.data, out.columns}, stream_);
}

void CudaFloatOps::linear(ConstCudaView x, ConstCudaView w, CudaView y) const {
  launch_product(ProductForm::kNT, x, w, y, /*add=*/false, {}, ProductPart::kWhole, stream_);
}

void CudaFloatOps::add_scaled(ConstCudaView a, float scale, CudaView x) const {
  launch_rows(x.rows, AddScaled{a.data, scale, x.data, x.columns}, stream_);
}

void CudaFloatOps::rms_norm(ConstCudaView x, float c, CudaView y) const {
  launch_rows(x.rows, RmsNorm{x.data, c, y.data, x.columns}, stream_);
}

void CudaFloatOps::smear(ConstCudaView x, const float* gate, int64_t positions, CudaView out) const {
  launch_rows(x.rows, Smear{x.data, gate, positions, out.data, x.columns}, stream_);
}

void CudaFloatOps::add_skip(ConstCudaView skip, const float* weight, const float* gate, CudaView x) const {
  launch_rows(x.rows, AddSkip{skip.data, weight, gate, x.data, x.columns}, stream_);
}

void CudaFloatOps::mix(ConstCudaView x, ConstCudaView x0, const float* mix_x, const float* mix_x0, CudaView u) const {
  launch_rows(x.rows, Mix{x.data, x0.data, mix_x, mix_x0, u.data, x.columns}, stream_);
}

void CudaFloatOps::add(ConstCudaView a, const float* scale, CudaView x) const {
  launch_rows(x.rows, Add{a.data, scale, x.data, x.columns}, stream_);
}

void CudaFloatOps::norm_and_rotate(ConstCudaView x, const HeadRotation& rotation, const float* gain, CudaView y) const {
  int64_t heads = x.columns / rotation.head_dim;
  launch_rows(x.rows * heads, NormAndRotate{x.data, rotation, gain, heads, y.data}, stream_);
}

void CudaFloatOps::leaky_relu_squared(ConstCudaView z, CudaView y) const {
  launch_rows(z.rows, LeakyReluSquared{z.data, y.data, z.columns}, stream_);
}

void CudaFloatOps::softcap(ConstCudaView x, float cap, CudaView y) const {
  launch_rows(x.rows, Softcap{x.data, cap, y.data, x.columns}, stream_);
}

}  // namespace thimble
