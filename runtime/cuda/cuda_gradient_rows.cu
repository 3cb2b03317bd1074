// cuda_gradient_rows.cu: a warp per row, or per head of a row.
#include "runtime/cuda/cuda_gradient_rows.cuh"

#include "runtime/cuda/kernels/cuda_head_lanes.cuh"
#include "runtime/cuda/kernels/cuda_row_vectors.cuh"

namespace thimble {
namespace {

// Where gradients go: written or added, and rounded to bf16 besides where that is asked for.
template <int kWidth>
struct GradientsOut {
  CudaView dx;
  bool adds;
  RoundedRows rounded;

  // Columns of value(Width<kWidth>, column).
  template <typename Value>
  __device__ void write(int64_t row, int lane, const Value& value) const {
    float* to = dx.data + row * dx.stride;
    auto sum = [&](auto width, int64_t c) {
      Columns<kWidth> out = value(width, c);
      if (!adds) return out;
      const auto before = load_columns<kWidth>(to + c);
      return columns_of<kWidth>([&](int i) { return before[i] + out[i]; });
    };
    map_columns<kWidth>(dx.columns, lane, sum, [&](int64_t c, const Columns<kWidth>& columns) {
      write_columns(to + c, columns);
      write_rounded(rounded, row, c, columns);
    });
  }
};

// dx[row] (+)= function(row).
template <int kWidth, typename Function>
struct WriteRows {
  GradientsOut<kWidth> out;
  Function function;

  __device__ void operator()(int64_t row, int lane) const {
    out.write(row, lane, [&](auto width, int64_t c) { return function(width, row, c); });
  }
};

template <int kWidth>
__device__ Columns<kWidth> columns_at(const ConstCudaView& x, int64_t row, int64_t column) {
  return load_columns<kWidth>(x.data + row * x.stride + column);
}
bool has_vectors(const ConstCudaView& x) { return has_row_vectors(x.data, x.columns, x.stride); }

struct Scaled {
  ConstCudaView dy;
  const float* scale;  // may be null
  float factor;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return (scale ? scale[c + i] * factor : factor) * g[i]; });
  }
};

struct WithoutBias {
  ConstCudaView x;
  const float* bias;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c);
    return columns_of<kWidth>([&](int i) { return own[i] - bias[c + i]; });
  }
};

struct Ungated {
  ConstCudaView dy;
  const float *weight, *gate;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return weight[c + i] * (1 - gate[c + i]) * g[i]; });
  }
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
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c), g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return g[i] * activation_slope(activation, own[i]); });
  }
};

struct GateBackward {
  Activation activation;
  ConstCudaView x, a, dy;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c), other = columns_at<kWidth>(a, row, c),
               g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return g[i] * other[i] * activation_slope(activation, own[i]); });
  }
};

struct GatedBackward {
  Activation activation;
  ConstCudaView x, dy;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c), g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return g[i] * activated_by(activation, own[i]); });
  }
};

struct SmearBackward {
  ConstCudaView dy;
  const float* gate;
  int64_t positions;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto g = columns_at<kWidth>(dy, row, c);
    Columns<kWidth> next = {};
    if (row % positions < positions - 1) next = columns_at<kWidth>(dy, row + 1, c);
    return columns_of<kWidth>([&](int i) { return (1 - gate[c + i]) * g[i] + gate[c + i] * next[i]; });
  }
};

struct SmearDirection {
  ConstCudaView x;
  int64_t positions;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c);
    Columns<kWidth> before = {};
    if (row % positions > 0) before = columns_at<kWidth>(x, row - 1, c);
    return columns_of<kWidth>([&](int i) { return before[i] - own[i]; });
  }
};

template <int kWidth>
struct RmsNormBackward {
  ConstCudaView x, dy;
  const float* gain;  // may be null
  float factor, epsilon;
  GradientsOut<kWidth> out;

  __device__ void operator()(int64_t row, int lane) const {
    auto g = [&](int64_t c) {
      const auto gradient = columns_at<kWidth>(dy, row, c);
      return columns_of<kWidth>([&](int i) { return gain ? gradient[i] * gain[c + i] : gradient[i]; });
    };
    float squares = 0, dot = 0;
    for (int64_t c = lane * kWidth; c < x.columns; c += 32 * kWidth) {
      const auto own = columns_at<kWidth>(x, row, c), gradient = g(c);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) squares += own[i] * own[i], dot += own[i] * gradient[i];
    }
    const auto width = static_cast<float>(x.columns);
    const float s = 1 / sqrtf(sum_over_lanes<32>(squares) / width + epsilon);
    const float along = s * s * (sum_over_lanes<32>(dot) / width);
    out.write(row, lane, [&](auto, int64_t c) {
      const auto own = columns_at<kWidth>(x, row, c), gradient = g(c);
      return columns_of<kWidth>([&](int i) { return (factor * s) * (gradient[i] - along * own[i]); });
    });
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
  GradientsOut<1> out;

  __device__ void operator()(int64_t row, int lane) const {
    const float *from = x.data + row * x.stride, *gradient = dy.data + row * dy.stride;
    const auto width = static_cast<float>(x.columns);
    const LayerMoments moments(from, x.columns, epsilon, lane);
    auto g = [&](int64_t c) { return gradient[c] * weight[c]; };
    const float mean_gradient = sum_over_row(x.columns, lane, g) / width;
    const float along = sum_over_row(x.columns, lane, [&](int64_t c) { return (from[c] - moments.mean) * g(c); }) *
                        (moments.inverse / width);
    out.write(row, lane, [&](auto, int64_t c) -> Columns<1> {
      return {{moments.inverse * (g(c) - mean_gradient - (from[c] - moments.mean) * (moments.inverse * along))}};
    });
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
  RoundedRows rounded;

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
    lanes.for_columns(d, [&](int i, int c) {
      const float value = adds ? out[c] + factor * g[i] : factor * g[i];
      out[c] = value;
      write_rounded<1>(rounded, lanes.row, int64_t{lanes.head} * d + c, {{value}});
    });
  }
};

}  // namespace

template <typename Make>
void CudaGradientRows::launch_wide(bool has_vectors_too, bool adds, CudaView dx, const Make& make) const {
  with_row_width<float>(has_vectors_too && has_vectors(dx), [&]<int kWidth>(Width<kWidth>) {
    launch_rows(dx.rows, make(GradientsOut<kWidth>{dx, adds, rounded_rows(rounds_, dx)}), stream_);
  });
}

template <typename Function>
void CudaGradientRows::write_rows(bool has_vectors_too, bool adds, CudaView dx, const Function& function) const {
  launch_wide(has_vectors_too, adds, dx, [&]<int kWidth>(const GradientsOut<kWidth>& out) {
    return WriteRows<kWidth, Function>{out, function};
  });
}

void CudaGradientRows::zero(CudaView x) const {
  check_cuda(cudaMemset2DAsync(x.data, static_cast<size_t>(x.stride) * sizeof(float), 0,
                               static_cast<size_t>(x.columns) * sizeof(float), static_cast<size_t>(x.rows), stream_));
}

void CudaGradientRows::scale(ConstCudaView dy, const float* scale, float factor, bool adds, CudaView dx) const {
  if (!adds && !scale && factor == 1 && dx.data == dy.data) return;
  write_rows(has_vectors(dy), adds, dx, Scaled{dy, scale, factor});
}

void CudaGradientRows::subtract(ConstCudaView x, const float* bias, CudaView out) const {
  write_rows(has_vectors(x), /*adds=*/false, out, WithoutBias{x, bias});
}

void CudaGradientRows::scale_ungated(ConstCudaView dy, const float* weight, const float* gate, bool adds,
                                     CudaView dx) const {
  write_rows(has_vectors(dy), adds, dx, Ungated{dy, weight, gate});
}

void CudaGradientRows::rms_norm(ConstCudaView x, const float* gain, float factor, float epsilon, ConstCudaView dy,
                                bool adds, CudaView dx) const {
  launch_wide(has_vectors(x) && has_vectors(dy), adds, dx, [&]<int kWidth>(const GradientsOut<kWidth>& out) {
    return RmsNormBackward<kWidth>{x, dy, gain, factor, epsilon, out};
  });
}

void CudaGradientRows::layer_norm(ConstCudaView x, const float* weight, float epsilon, ConstCudaView dy, bool adds,
                                  CudaView dx) const {
  launch_rows(x.rows, LayerNormBackward{x, dy, weight, epsilon, {dx, adds, rounded_rows(rounds_, dx)}}, stream_);
}

void CudaGradientRows::heads(ConstCudaView x, int64_t head_dim, float epsilon, const float* norm_gain,
                             const float* head_gain, const NodeRotation& rotation, int64_t positions, ConstCudaView dy,
                             bool adds, CudaView dx) const {
  const HeadRows all(dy.rows, dy.columns / head_dim, head_dim);
  const RoundedRows rounded = rounded_rows(rounds_, dx);
  launch_heads(all, stream_, [&]<int kLanes, int kPieces>() {
    return HeadsBackward<kLanes, kPieces>{
        all, x, dy, static_cast<int>(positions), epsilon, norm_gain, head_gain, rotation, adds, dx, rounded};
  });
}

void CudaGradientRows::rotate_back(int64_t head_dim, const NodeRotation& rotation, int64_t positions, ConstCudaView dy,
                                   CudaView dx) const {
  heads({}, head_dim, 0, nullptr, nullptr, rotation, positions, dy, /*adds=*/false, dx);
}

void CudaGradientRows::activate(Activation activation, ConstCudaView x, ConstCudaView dy, bool adds,
                                CudaView dx) const {
  write_rows(has_vectors(x) && has_vectors(dy), adds, dx, ActivationBackward{activation, x, dy});
}

void CudaGradientRows::gate(Activation activation, ConstCudaView x, ConstCudaView a, ConstCudaView dy, bool adds,
                            CudaView dx) const {
  write_rows(has_vectors(x) && has_vectors(a) && has_vectors(dy), adds, dx, GateBackward{activation, x, a, dy});
}

void CudaGradientRows::gated(Activation activation, ConstCudaView x, ConstCudaView dy, bool adds, CudaView da) const {
  write_rows(has_vectors(x) && has_vectors(dy), adds, da, GatedBackward{activation, x, dy});
}

void CudaGradientRows::smear(ConstCudaView dy, const float* gate, int64_t positions, bool adds, CudaView dx) const {
  write_rows(has_vectors(dy), adds, dx, SmearBackward{dy, gate, positions});
}

void CudaGradientRows::smear_direction(ConstCudaView x, int64_t positions, CudaView out) const {
  write_rows(has_vectors(x), /*adds=*/false, out, SmearDirection{x, positions});
}

void CudaGradientRows::normalise(ConstCudaView x, float epsilon, CudaView out) const {
  launch_rows(x.rows, Normalise{x, epsilon, out}, stream_);
}

}  // namespace thimble
