// cuda_gradient_rows.cu: a warp per row, or per head of a row.
#include "runtime/cuda/cuda_gradient_rows.cuh"

#include "runtime/cuda/kernels/cuda_activation.cuh"
#include "runtime/cuda/kernels/cuda_head_lanes.cuh"
#include "runtime/cuda/kernels/cuda_row_vectors.cuh"

namespace thimble {
namespace {

template <typename T>
using In = BasicCudaView<const T>;

// Where gradients go: written or added.
template <typename T, int kWidth>
struct GradientsOut {
  BasicCudaView<T> dx;
  bool adds;

  // Columns of value(Width<kWidth>, column).
  template <typename Value>
  __device__ void write(int64_t row, int lane, const Value& value) const {
    T* to = dx.data + row * dx.stride;
    auto sum = [&](auto width, int64_t c) {
      Columns<kWidth> out = value(width, c);
      if (!adds) return out;
      const auto before = load_columns<kWidth>(to + c);
      return columns_of<kWidth>([&](int i) { return before[i] + out[i]; });
    };
    map_columns<kWidth>(dx.columns, lane, sum,
                        [&](int64_t c, const Columns<kWidth>& columns) { write_columns(to + c, columns); });
  }
};

// dx[row] (+)= function(row).
template <typename T, int kWidth, typename Function>
struct WriteRows {
  GradientsOut<T, kWidth> out;
  Function function;

  __device__ void operator()(int64_t row, int lane) const {
    out.write(row, lane, [&](auto width, int64_t c) { return function(width, row, c); });
  }
};

template <int kWidth, typename T>
__device__ Columns<kWidth> columns_at(const In<T>& x, int64_t row, int64_t column) {
  return load_columns<kWidth>(x.data + row * x.stride + column);
}

template <typename T>
struct Scaled {
  In<T> dy;
  const float* scale;  // may be null
  float factor;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto g = columns_at<kWidth>(dy, row, c), times = vector_columns<kWidth>(scale, c);
    return columns_of<kWidth>([&](int i) { return times[i] * factor * g[i]; });
  }
};

template <typename T>
struct WithoutBias {
  In<T> x;
  const float* bias;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c), added = vector_columns<kWidth>(bias, c);
    return columns_of<kWidth>([&](int i) { return own[i] - added[i]; });
  }
};

template <typename T>
struct Ungated {
  In<T> dy;
  const float *weight, *gate;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto g = columns_at<kWidth>(dy, row, c), weights = vector_columns<kWidth>(weight, c),
               gates = vector_columns<kWidth>(gate, c);
    return columns_of<kWidth>([&](int i) { return weights[i] * (1 - gates[i]) * g[i]; });
  }
};

__device__ float activated_by(Activation activation, float z) {
  switch (activation) {
    case Activation::kLeakyReluSquared: return activated<Activation::kLeakyReluSquared>(z);
    case Activation::kGeluTanh: return gelu_tanh(z);
    case Activation::kSilu: return silu(z);
  }
  return z;
}

template <typename T>
struct ActivationBackward {
  Activation activation;
  In<T> x, dy;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c), g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return g[i] * activation_slope(activation, own[i]); });
  }
};

template <typename T>
struct GateBackward {
  Activation activation;
  In<T> x, a, dy;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c), other = columns_at<kWidth>(a, row, c),
               g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return g[i] * other[i] * activation_slope(activation, own[i]); });
  }
};

template <typename T>
struct GatedBackward {
  Activation activation;
  In<T> x, dy;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c), g = columns_at<kWidth>(dy, row, c);
    return columns_of<kWidth>([&](int i) { return g[i] * activated_by(activation, own[i]); });
  }
};

template <typename T>
struct SmearBackward {
  In<T> dy;
  const float* gate;
  int64_t positions;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto g = columns_at<kWidth>(dy, row, c);
    Columns<kWidth> next = {};
    if (row % positions < positions - 1) next = columns_at<kWidth>(dy, row + 1, c);
    const auto gates = vector_columns<kWidth>(gate, c);
    return columns_of<kWidth>([&](int i) { return (1 - gates[i]) * g[i] + gates[i] * next[i]; });
  }
};

template <typename T>
struct SmearDirection {
  In<T> x;
  int64_t positions;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<kWidth>(x, row, c);
    Columns<kWidth> before = {};
    if (row % positions > 0) before = columns_at<kWidth>(x, row - 1, c);
    return columns_of<kWidth>([&](int i) { return before[i] - own[i]; });
  }
};

template <typename T, int kWidth>
struct RmsNormBackward {
  In<T> x, dy;
  const float* gain;  // may be null
  float factor, epsilon;
  GradientsOut<T, kWidth> out;

  __device__ void operator()(int64_t row, int lane) const {
    auto g = [&](int64_t c) {
      const auto gradient = columns_at<kWidth>(dy, row, c), gains = vector_columns<kWidth>(gain, c);
      return columns_of<kWidth>([&](int i) { return gradient[i] * gains[i]; });
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

  template <typename T>
  __device__ LayerMoments(const T* x, int64_t columns, float epsilon, int lane) {
    const auto width = static_cast<float>(columns);
    mean = sum_over_row(columns, lane, [&](int64_t c) { return to_float(x[c]); }) / width;
    const float squares = sum_over_row(columns, lane, [&](int64_t c) {
      const float v = to_float(x[c]) - mean;
      return v * v;
    });
    inverse = 1 / sqrtf(squares / width + epsilon);
  }
};

template <typename T>
struct LayerNormBackward {
  In<T> x, dy;
  const float* weight;
  float epsilon;
  GradientsOut<T, 1> out;

  __device__ void operator()(int64_t row, int lane) const {
    const T *from = x.data + row * x.stride, *gradient = dy.data + row * dy.stride;
    const auto width = static_cast<float>(x.columns);
    const LayerMoments moments(from, x.columns, epsilon, lane);
    auto centred = [&](int64_t c) { return to_float(from[c]) - moments.mean; };
    auto g = [&](int64_t c) { return to_float(gradient[c]) * weight[c]; };
    const float mean_gradient = sum_over_row(x.columns, lane, g) / width;
    const float along =
        sum_over_row(x.columns, lane, [&](int64_t c) { return centred(c) * g(c); }) * (moments.inverse / width);
    out.write(row, lane, [&](auto, int64_t c) -> Columns<1> {
      return {{moments.inverse * (g(c) - mean_gradient - centred(c) * (moments.inverse * along))}};
    });
  }
};

template <typename T>
struct Normalise {
  In<T> x;
  float epsilon;
  BasicCudaView<T> out;

  __device__ void operator()(int64_t row, int lane) const {
    const T* from = x.data + row * x.stride;
    const LayerMoments moments(from, x.columns, epsilon, lane);
    store_columns(out.data + row * out.stride, x.columns, lane,
                  [&](int64_t c) { return from_float<T>((to_float(from[c]) - moments.mean) * moments.inverse); });
  }
};

// Of one position's head a rotating pair's elements may belong to two lanes: all are read before one is written, since
// dx may be dy.
template <typename T, int kLanes, int kPieces, int kWidth>
struct HeadsBackward {
  RowHeads all;
  In<T> x, dy;
  int positions;
  float epsilon;  // 0: no norm
  const float *norm_gain, *head_gain;
  NodeRotation rotation;
  bool adds;
  BasicCudaView<T> dx, gain_terms;

  __device__ void operator()(int64_t warp, int warp_lane) const {
    const HeadLanes<kLanes, kPieces, kWidth> lanes(all, warp, warp_lane);
    const int d = all.head_dim, half = static_cast<int>(rotation.half);
    const T* gradient = dy.data + lanes.row * dy.stride + lanes.head * d;
    T* out = dx.data + lanes.row * dx.stride + lanes.head * d;
    const bool has_gain = norm_gain && epsilon > 0;
    float g[kPieces * kWidth], values[kPieces * kWidth], before[kPieces * kWidth];  // g: by the normed value
    lanes.load(gradient, d, g);
    if (epsilon > 0 || gain_terms.data) lanes.load(x.data + lanes.row * x.stride + lanes.head * d, d, values);
    if (adds) lanes.load(out, d, before);
    if (half > 0) {
      float partners[kPieces * kWidth];
      float2 angles[kPieces * kWidth];
      lanes.load_partners(gradient, d, half, partners);
      lanes.load_angles(rotation.angles + int64_t{lanes.row % positions} * rotary_stride(half), d, half, angles);
      lanes.for_columns(min(d, 2 * half), [&](int i, int c) {
        g[i] =
            c < half ? g[i] * angles[i].x - partners[i] * angles[i].y : partners[i] * angles[i].y + g[i] * angles[i].x;
      });
    }
    float s = 1;
    if (epsilon > 0) {
      const float squares = lanes.sum(d, [&](int i, int) { return values[i] * values[i]; });
      s = 1 / sqrtf(squares / static_cast<float>(d) + epsilon);
    }
    if (gain_terms.data && lanes.exists) {
      float terms[kPieces * kWidth];
      lanes.for_columns(d, [&](int i, int) { terms[i] = g[i] * (s * values[i]); });
      lanes.store(terms, d, gain_terms.data + lanes.row * gain_terms.stride + lanes.head * d);
    }
    if (has_gain) lanes.for_columns(d, [&](int i, int c) { g[i] *= norm_gain[c]; });
    float factor = head_gain ? head_gain[lanes.head] : 1.0f;
    if (epsilon > 0) {
      const float dot = lanes.sum(d, [&](int i, int) { return values[i] * g[i]; });
      const float along = s * s * (dot / static_cast<float>(d));
      lanes.for_columns(d, [&](int i, int) { g[i] -= along * values[i]; });
      factor *= s;
    }
    __syncwarp();
    if (!lanes.exists) return;
    lanes.for_columns(d, [&](int i, int) { g[i] = adds ? before[i] + factor * g[i] : factor * g[i]; });
    lanes.store(g, d, out);
  }
};

}  // namespace

template <typename T>
template <typename Make>
void CudaGradientRows<T>::launch_wide(bool has_vectors_too, bool adds, BasicCudaView<T> dx, const Make& make) const {
  with_row_width<T>(has_vectors_too && has_row_vectors(dx), [&]<int kWidth>(Width<kWidth>) {
    launch_rows(dx.rows, make(GradientsOut<T, kWidth>{dx, adds}), stream_);
  });
}

template <typename T>
template <typename Function>
void CudaGradientRows<T>::write_rows(bool has_vectors_too, bool adds, BasicCudaView<T> dx,
                                     const Function& function) const {
  launch_wide(has_vectors_too, adds, dx, [&]<int kWidth>(const GradientsOut<T, kWidth>& out) {
    return WriteRows<T, kWidth, Function>{out, function};
  });
}

template <typename T>
void CudaGradientRows<T>::zero(BasicCudaView<T> x) const {
  check_cuda(cudaMemset2DAsync(x.data, static_cast<size_t>(x.stride) * sizeof(T), 0,
                               static_cast<size_t>(x.columns) * sizeof(T), static_cast<size_t>(x.rows), stream_));
}

template <typename T>
void CudaGradientRows<T>::scale(In<T> dy, const float* scale, float factor, bool adds, BasicCudaView<T> dx) const {
  if (!adds && !scale && factor == 1 && dx.data == dy.data) return;
  write_rows(has_row_vectors(dy) && is_row_vector(scale), adds, dx, Scaled<T>{dy, scale, factor});
}

template <typename T>
void CudaGradientRows<T>::subtract(In<T> x, const float* bias, BasicCudaView<T> out) const {
  write_rows(has_row_vectors(x) && is_row_vector(bias), /*adds=*/false, out, WithoutBias<T>{x, bias});
}

template <typename T>
void CudaGradientRows<T>::scale_ungated(In<T> dy, const float* weight, const float* gate, bool adds,
                                        BasicCudaView<T> dx) const {
  write_rows(has_row_vectors(dy) && is_row_vector(weight) && is_row_vector(gate), adds, dx,
             Ungated<T>{dy, weight, gate});
}

template <typename T>
void CudaGradientRows<T>::rms_norm(In<T> x, const float* gain, float factor, float epsilon, In<T> dy, bool adds,
                                   BasicCudaView<T> dx) const {
  launch_wide(has_row_vectors(x) && has_row_vectors(dy) && is_row_vector(gain), adds, dx,
              [&]<int kWidth>(const GradientsOut<T, kWidth>& out) {
                return RmsNormBackward<T, kWidth>{x, dy, gain, factor, epsilon, out};
              });
}

template <typename T>
void CudaGradientRows<T>::layer_norm(In<T> x, const float* weight, float epsilon, In<T> dy, bool adds,
                                     BasicCudaView<T> dx) const {
  launch_rows(x.rows, LayerNormBackward<T>{x, dy, weight, epsilon, {dx, adds}}, stream_);
}

template <typename T>
void CudaGradientRows<T>::heads(In<T> x, int64_t head_dim, float epsilon, const float* norm_gain,
                                const float* head_gain, const NodeRotation& rotation, int64_t positions, In<T> dy,
                                bool adds, BasicCudaView<T> dx, BasicCudaView<T> gain_terms) const {
  const RowHeads all(dy.rows, dy.columns / head_dim, head_dim);
  const bool has_all = has_row_vectors(x) && has_row_vectors(dy) && has_row_vectors(dx) &&
                       has_row_vectors(gain_terms) && has_head_vectors<T>(head_dim, rotation.half);
  launch_heads<T>(all, has_all, stream_, [&]<int kLanes, int kPieces, int kWidth>() {
    return HeadsBackward<T, kLanes, kPieces, kWidth>{
        all, x, dy, static_cast<int>(positions), epsilon, norm_gain, head_gain, rotation, adds, dx, gain_terms};
  });
}

template <typename T>
void CudaGradientRows<T>::activate(Activation activation, In<T> x, In<T> dy, bool adds, BasicCudaView<T> dx) const {
  write_rows(has_row_vectors(x) && has_row_vectors(dy), adds, dx, ActivationBackward<T>{activation, x, dy});
}

template <typename T>
void CudaGradientRows<T>::gate(Activation activation, In<T> x, In<T> a, In<T> dy, bool adds,
                               BasicCudaView<T> dx) const {
  write_rows(has_row_vectors(x) && has_row_vectors(a) && has_row_vectors(dy), adds, dx,
             GateBackward<T>{activation, x, a, dy});
}

template <typename T>
void CudaGradientRows<T>::gated(Activation activation, In<T> x, In<T> dy, bool adds, BasicCudaView<T> da) const {
  write_rows(has_row_vectors(x) && has_row_vectors(dy), adds, da, GatedBackward<T>{activation, x, dy});
}

template <typename T>
void CudaGradientRows<T>::smear(In<T> dy, const float* gate, int64_t positions, bool adds, BasicCudaView<T> dx) const {
  write_rows(has_row_vectors(dy) && is_row_vector(gate), adds, dx, SmearBackward<T>{dy, gate, positions});
}

template <typename T>
void CudaGradientRows<T>::smear_direction(In<T> x, int64_t positions, BasicCudaView<T> out) const {
  write_rows(has_row_vectors(x), /*adds=*/false, out, SmearDirection<T>{x, positions});
}

template <typename T>
void CudaGradientRows<T>::normalise(In<T> x, float epsilon, BasicCudaView<T> out) const {
  launch_rows(x.rows, Normalise<T>{x, epsilon, out}, stream_);
}

template class CudaGradientRows<float>;
template class CudaGradientRows<__nv_bfloat16>;

}  // namespace thimble
