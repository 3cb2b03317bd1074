// cuda_gradient_rows.cu: a warp per row, or per head of a row.
#include "runtime/cuda/cuda_gradient_rows.cuh"

#include "runtime/cuda/kernels/cuda_head_lanes.cuh"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

// out[c] (+)= value(c) of a row's columns.
template <typename Value>
__device__ void write_columns(float* out, int64_t columns, int lane, bool adds, const Value& value) {
  store_columns(out, columns, lane, [&](int64_t c) { return adds ? out[c] + value(c) : value(c); });
}

// dx[row] (+)= function(row, column).
template <typename Function>
struct WriteRows {
  CudaView dx;
  bool adds;
  Function function;

  __device__ void operator()(int64_t row, int lane) const {
    write_columns(dx.data + row * dx.stride, dx.columns, lane, adds, [&](int64_t c) { return function(row, c); });
  }
};

template <typename Function>
void write_rows(CudaView dx, bool adds, const Function& function, cudaStream_t stream) {
  launch_rows(dx.rows, WriteRows<Function>{dx, adds, function}, stream);
}

__device__ float at(const ConstCudaView& x, int64_t row, int64_t column) { return x.data[row * x.stride + column]; }

struct Scaled {
  ConstCudaView dy;
  const float* scale;  // may be null
  float factor;
  __device__ float operator()(int64_t row, int64_t c) const {
    return (scale ? scale[c] * factor : factor) * at(dy, row, c);
  }
};

struct WithoutBias {
  ConstCudaView x;
  const float* bias;
  __device__ float operator()(int64_t row, int64_t c) const { return at(x, row, c) - bias[c]; }
};

struct Ungated {
  ConstCudaView dy;
  const float *weight, *gate;
  __device__ float operator()(int64_t row, int64_t c) const { return weight[c] * (1 - gate[c]) * at(dy, row, c); }
};

__device__ float activation_slope(Activation activation, float z) {
  switch (activation) {
    case Activation::kLeakyReluSquared: return z > 0 ? 2 * z : 0.5f * z;
    case Activation::kGeluTanh: {  // z sigma(t(z))
      constexpr float kTwoSqrtTwoOverPi = 1.59576912f;
      const float sigma = 1 / (1 + expf(-kTwoSqrtTwoOverPi * (z + 0.044715f * z * z * z)));
      return sigma + z * sigma * (1 - sigma) * kTwoSqrtTwoOverPi * (1 + 3 * 0.044715f * z * z);
    }
    case Activation::kSilu: {
      const float sigma = 1 / (1 + expf(-z));
      return sigma + z * sigma * (1 - sigma);
    }
  }
  return 1;
}

__device__ float activated_by(Activation activation, float z) {
  switch (activation) {
    case Activation::kLeakyReluSquared: return activated<Activation::kLeakyReluSquared>(z);
    case Activation::kGeluTanh: return gelu_tanh(z);
    case Activation::kSilu: return silu(z);
  }
  return z;
}

struct ActivationBackward {
  Activation activation;
  ConstCudaView x, dy;
  __device__ float operator()(int64_t row, int64_t c) const {
    return at(dy, row, c) * activation_slope(activation, at(x, row, c));
  }
};

struct GateBackward {
  Activation activation;
  ConstCudaView x, a, dy;
  __device__ float operator()(int64_t row, int64_t c) const {
    return at(dy, row, c) * at(a, row, c) * activation_slope(activation, at(x, row, c));
  }
};

struct GatedBackward {
  Activation activation;
  ConstCudaView x, dy;
  __device__ float operator()(int64_t row, int64_t c) const {
    return at(dy, row, c) * activated_by(activation, at(x, row, c));
  }
};

struct SmearBackward {
  ConstCudaView dy;
  const float* gate;
  int64_t positions;
  __device__ float operator()(int64_t row, int64_t c) const {
    const float next = row % positions == positions - 1 ? 0 : at(dy, row + 1, c);
    return (1 - gate[c]) * at(dy, row, c) + gate[c] * next;
  }
};

struct SmearDirection {
  ConstCudaView x;
  int64_t positions;
  __device__ float operator()(int64_t row, int64_t c) const {
    return (row % positions == 0 ? 0 : at(x, row - 1, c)) - at(x, row, c);
  }
};

struct RmsNormBackward {
  ConstCudaView x, dy;
  const float* gain;  // may be null
  float factor, epsilon;
  bool adds;
  CudaView dx;

  __device__ void operator()(int64_t row, int lane) const {
    const float *from = x.data + row * x.stride, *gradient = dy.data + row * dy.stride;
    float* out = dx.data + row * dx.stride;
    auto g = [&](int64_t c) { return gain ? gradient[c] * gain[c] : gradient[c]; };
    const float s = inverse_rms(from, x.columns, epsilon, lane);
    const float dot = sum_over_row(x.columns, lane, [&](int64_t c) { return from[c] * g(c); });
    const float along = s * s * (dot / static_cast<float>(x.columns));
    write_columns(out, x.columns, lane, adds, [&](int64_t c) { return (factor * s) * (g(c) - along * from[c]); });
  }
};

struct LayerMoments {
  float mean, inverse;

  __device__ LayerMoments(const float* x, int64_t columns, float epsilon, int lane) {
    const auto width = static_cast<float>(columns);
    mean = sum_over_row(columns, lane, [&](int64_t c) { return x[c]; }) / width;
    const float squares = sum_over_row(columns, lane, [&](int64_t c) { return (x[c] - mean) * (x[c] - mean); });
    inverse = 1 / sqrtf(squares / width + epsilon);
  }
};

struct LayerNormBackward {
  ConstCudaView x, dy;
  const float* weight;
  float epsilon;
  bool adds;
  CudaView dx;

  __device__ void operator()(int64_t row, int lane) const {
    const float *from = x.data + row * x.stride, *gradient = dy.data + row * dy.stride;
    float* out = dx.data + row * dx.stride;
    const auto width = static_cast<float>(x.columns);
    const LayerMoments moments(from, x.columns, epsilon, lane);
    auto g = [&](int64_t c) { return gradient[c] * weight[c]; };
    const float mean_gradient = sum_over_row(x.columns, lane, g) / width;
    const float along = sum_over_row(x.columns, lane, [&](int64_t c) { return (from[c] - moments.mean) * g(c); }) *
                        (moments.inverse / width);
    auto value = [&](int64_t c) {
      return moments.inverse * (g(c) - mean_gradient - (from[c] - moments.mean) * (moments.inverse * along));
    };
    write_columns(out, x.columns, lane, adds, value);
  }
};

struct Normalise {
  ConstCudaView x;
  float epsilon;
  CudaView out;

  __device__ void operator()(int64_t row, int lane) const {
    const float* from = x.data + row * x.stride;
    const LayerMoments moments(from, x.columns, epsilon, lane);
    store_columns(out.data + row * out.stride, x.columns, lane,
                  [&](int64_t c) { return (from[c] - moments.mean) * moments.inverse; });
  }
};

// Of one position's head a rotating pair's elements may belong to two lanes: all are read before one is written, since
// dx may be dy.
template <int kLanes, int kPieces>
struct HeadsBackward {
  HeadRows all;
  ConstCudaView x, dy;  // x.data null: the rotation alone
  int positions;
  float epsilon;  // 0: no norm
  const float *norm_gain, *head_gain;
  NodeRotation rotation;
  bool adds;
  CudaView dx;

  __device__ void operator()(int64_t warp, int warp_lane) const {
    const HeadLanes<kLanes, kPieces> lanes(all, warp, warp_lane);
    const int d = all.head_dim, half = static_cast<int>(rotation.half);
    const float* gradient = dy.data + lanes.row * dy.stride + lanes.head * d;
    float* out = dx.data + lanes.row * dx.stride + lanes.head * d;
    const bool has_gain = norm_gain && epsilon > 0;
    float g[kPieces], values[kPieces];  // before the rotation, by the normed value
    lanes.for_columns(d, [&](int i, int c) { g[i] = gradient[c]; });
    if (half > 0) {
      const float2* angles = rotation.angles + int64_t{lanes.row % positions} * half;
      lanes.for_columns(min(d, 2 * half), [&](int i, int c) {
        const float partner = gradient[rotation_partner(c, half)];
        const float2 angle = angles[c < half ? c : c - half];
        g[i] = c < half ? g[i] * angle.x - partner * angle.y : partner * angle.y + g[i] * angle.x;
      });
    }
    if (has_gain) lanes.for_columns(d, [&](int i, int c) { g[i] *= norm_gain[c]; });
    float factor = head_gain ? head_gain[lanes.head] : 1.0f;
    if (epsilon > 0) {
      const float* from = x.data + lanes.row * x.stride + lanes.head * d;
      lanes.for_columns(d, [&](int i, int c) { values[i] = from[c]; });
      const float squares = lanes.sum(d, [&](int i, int) { return values[i] * values[i]; });
      const float s = 1 / sqrtf(squares / static_cast<float>(d) + epsilon);
      const float dot = lanes.sum(d, [&](int i, int) { return values[i] * g[i]; });
      const float along = s * s * (dot / static_cast<float>(d));
      lanes.for_columns(d, [&](int i, int) { g[i] -= along * values[i]; });
      factor *= s;
    }
    __syncwarp();
    if (!lanes.exists) return;
    lanes.for_columns(d, [&](int i, int c) { out[c] = adds ? out[c] + factor * g[i] : factor * g[i]; });
  }
};

}  // namespace

void CudaGradientRows::zero(CudaView x) const {
  check_cuda(cudaMemset2DAsync(x.data, static_cast<size_t>(x.stride) * sizeof(float), 0,
                               static_cast<size_t>(x.columns) * sizeof(float), static_cast<size_t>(x.rows), stream_));
}

void CudaGradientRows::scale(ConstCudaView dy, const float* scale, float factor, bool adds, CudaView dx) const {
  if (!adds && !scale && factor == 1 && dx.data == dy.data) return;
  write_rows(dx, adds, Scaled{dy, scale, factor}, stream_);
}

void CudaGradientRows::subtract(ConstCudaView x, const float* bias, CudaView out) const {
  write_rows(out, /*adds=*/false, WithoutBias{x, bias}, stream_);
}

void CudaGradientRows::scale_ungated(ConstCudaView dy, const float* weight, const float* gate, bool adds,
                                     CudaView dx) const {
  write_rows(dx, adds, Ungated{dy, weight, gate}, stream_);
}

void CudaGradientRows::rms_norm(ConstCudaView x, const float* gain, float factor, float epsilon, ConstCudaView dy,
                                bool adds, CudaView dx) const {
  launch_rows(x.rows, RmsNormBackward{x, dy, gain, factor, epsilon, adds, dx}, stream_);
}

void CudaGradientRows::layer_norm(ConstCudaView x, const float* weight, float epsilon, ConstCudaView dy, bool adds,
                                  CudaView dx) const {
  launch_rows(x.rows, LayerNormBackward{x, dy, weight, epsilon, adds, dx}, stream_);
}

void CudaGradientRows::heads(ConstCudaView x, int64_t head_dim, float epsilon, const float* norm_gain,
                             const float* head_gain, const NodeRotation& rotation, int64_t positions, ConstCudaView dy,
                             bool adds, CudaView dx) const {
  const HeadRows all(dy.rows, dy.columns / head_dim, head_dim);
  launch_heads(all, stream_, [&]<int kLanes, int kPieces>() {
    return HeadsBackward<kLanes, kPieces>{
        all, x, dy, static_cast<int>(positions), epsilon, norm_gain, head_gain, rotation, adds, dx};
  });
}

void CudaGradientRows::rotate_back(int64_t head_dim, const NodeRotation& rotation, int64_t positions, ConstCudaView dy,
                                   CudaView dx) const {
  heads({}, head_dim, 0, nullptr, nullptr, rotation, positions, dy, /*adds=*/false, dx);
}

void CudaGradientRows::activate(Activation activation, ConstCudaView x, ConstCudaView dy, bool adds,
                                CudaView dx) const {
  write_rows(dx, adds, ActivationBackward{activation, x, dy}, stream_);
}

void CudaGradientRows::gate(Activation activation, ConstCudaView x, ConstCudaView a, ConstCudaView dy, bool adds,
                            CudaView dx) const {
  write_rows(dx, adds, GateBackward{activation, x, a, dy}, stream_);
}

void CudaGradientRows::gated(Activation activation, ConstCudaView x, ConstCudaView dy, bool adds, CudaView da) const {
  write_rows(da, adds, GatedBackward{activation, x, dy}, stream_);
}

void CudaGradientRows::smear(ConstCudaView dy, const float* gate, int64_t positions, bool adds, CudaView dx) const {
  write_rows(dx, adds, SmearBackward{dy, gate, positions}, stream_);
}

void CudaGradientRows::smear_direction(ConstCudaView x, int64_t positions, CudaView out) const {
  write_rows(out, /*adds=*/false, SmearDirection{x, positions}, stream_);
}

void CudaGradientRows::normalise(ConstCudaView x, float epsilon, CudaView out) const {
  launch_rows(x.rows, Normalise{x, epsilon, out}, stream_);
}

}  // namespace thimble
