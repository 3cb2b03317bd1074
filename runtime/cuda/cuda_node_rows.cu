// cuda_node_rows.cu: a warp per row, or per head of a row.
#include "runtime/cuda/cuda_node_rows.cuh"

#include <cassert>

#include "runtime/cuda/kernels/cuda_head_lanes.cuh"
#include "runtime/cuda/kernels/cuda_row_vectors.cuh"

namespace thimble {
namespace {

// Row `row` of y, each value rounded; zeros behind its columns.
template <typename T, typename Value>
__device__ void store_row(const NodeRows<T>& y, int64_t row, int lane, const ValueRounding& rounding,
                          const Value& value) {
  store_columns(y.data + row * y.stride, y.padded, lane, [&](int64_t c) {
    const float rounded = rounding(value(min(c, y.columns - 1)));
    return from_float<T>(c < y.columns ? rounded : 0.0f);
  });
}

// Where values go, rounded.
template <typename T, int kWidth>
struct RowsOut {
  NodeRows<T> y;
  ValueRounding rounding;

  // Columns of value(Width<kWidth>, column); zeros behind them.
  template <typename Value>
  __device__ void write(int64_t row, int lane, const Value& value) const {
    T* to = y.data + row * y.stride;
    map_columns<kWidth>(y.columns, lane, value, [&](int64_t c, Columns<kWidth> columns) {
#pragma unroll
      for (float& v : columns.values) v = rounding(v);
      write_columns(to + c, columns);
    });
    for (int64_t c = y.columns + lane; c < y.padded; c += 32) to[c] = from_float<T>(0.0f);
  }
};

// y[row] = function(row).
template <typename T, int kWidth, typename Function>
struct MapRows {
  RowsOut<T, kWidth> out;
  Function function;

  __device__ void operator()(int64_t row, int lane) const {
    out.write(row, lane, [&](auto width, int64_t c) { return function(width, row, c); });
  }
};

template <typename T, int kWidth>
__device__ Columns<kWidth> columns_at(const NodeRows<T>& x, int64_t row, int64_t column) {
  return load_columns<kWidth>(x.data + row * x.stride + column);
}
template <typename T>
__device__ float value_at(const NodeRows<T>& x, int64_t row, int64_t column) {
  return to_float(x.data[row * x.stride + column]);
}

template <typename T>
struct LastRow {
  NodeRows<T> from;
  int64_t from_positions, to_positions;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const int64_t position = from_positions - to_positions + row % to_positions;
    return columns_at<T, kWidth>(from, row / to_positions * from_positions + position, c);
  }
};

template <typename T>
struct Sum {
  NodeRows<T> x, a;
  const float* scale;
  float factor;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<T, kWidth>(x, row, c), other = columns_at<T, kWidth>(a, row, c);
    const auto times = vector_columns<kWidth>(scale, c);
    return columns_of<kWidth>([&](int i) { return own[i] + times[i] * factor * other[i]; });
  }
};

template <typename T, Activation kActivation>
struct Activated {
  NodeRows<T> x;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<T, kWidth>(x, row, c);
    return columns_of<kWidth>([&](int i) { return activated<kActivation>(own[i]); });
  }
};

template <typename T, Activation kActivation>
struct Gated {
  NodeRows<T> x, a;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<T, kWidth>(x, row, c), other = columns_at<T, kWidth>(a, row, c);
    return columns_of<kWidth>([&](int i) { return activated<kActivation>(own[i]) * other[i]; });
  }
};

template <typename T>
struct Mixed {
  NodeRows<T> x, a;
  const float *first, *second;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<T, kWidth>(x, row, c), other = columns_at<T, kWidth>(a, row, c);
    const auto left = vector_columns<kWidth>(first, c), right = vector_columns<kWidth>(second, c);
    return columns_of<kWidth>([&](int i) { return left[i] * own[i] + right[i] * other[i]; });
  }
};

template <typename T>
struct Skipped {
  NodeRows<T> x, a;
  const float *weight, *gate;  // gate may be null
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<T, kWidth>(x, row, c), other = columns_at<T, kWidth>(a, row, c);
    const auto weights = vector_columns<kWidth>(weight, c), gates = vector_columns<kWidth>(gate, c);
    return columns_of<kWidth>([&](int i) {
      const float weighted = weights[i] * other[i];
      return gate ? (1 - gates[i]) * weighted + gates[i] * own[i] : weighted + own[i];
    });
  }
};

template <typename T>
struct Smeared {
  NodeRows<T> x;
  const float* gate;
  const T* state;  // may be null
  int64_t positions;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<T, kWidth>(x, row, c);
    Columns<kWidth> before = {};
    if (row % positions > 0)
      before = columns_at<T, kWidth>(x, row - 1, c);
    else if (state)
      before = load_columns<kWidth>(state + row / positions * x.columns + c);
    const auto gates = vector_columns<kWidth>(gate, c);
    return columns_of<kWidth>([&](int i) { return (1 - gates[i]) * own[i] + gates[i] * before[i]; });
  }
};

template <typename T>
struct Biased {
  NodeRows<T> y;
  const float* bias;
  template <int kWidth>
  __device__ Columns<kWidth> operator()(Width<kWidth>, int64_t row, int64_t c) const {
    const auto own = columns_at<T, kWidth>(y, row, c), added = vector_columns<kWidth>(bias, c);
    return columns_of<kWidth>([&](int i) { return own[i] + added[i]; });
  }
};

template <typename T, int kWidth>
struct RmsNormRows {
  NodeRows<T> x;
  const float* gain;  // may be null
  float factor, epsilon;
  RowsOut<T, kWidth> out;

  __device__ void operator()(int64_t row, int lane) const {
    float squares = 0;
    for (int64_t c = lane * kWidth; c < x.columns; c += 32 * kWidth) {
      const auto values = columns_at<T, kWidth>(x, row, c);
#pragma unroll
      for (float v : values.values) squares += v * v;
    }
    squares = sum_over_lanes<32>(squares);
    const float scale = 1 / sqrtf(squares / static_cast<float>(x.columns) + epsilon) * factor;
    out.write(row, lane, [&](auto width, int64_t c) {
      const auto own = columns_at<T, width>(x, row, c), gains = vector_columns<kWidth>(gain, c);
      return columns_of<kWidth>([&](int i) { return own[i] * scale * gains[i]; });
    });
  }
};

template <typename T>
struct LayerNormRows {
  NodeRows<T> x, y;
  const float *weight, *bias;
  float epsilon;
  ValueRounding rounding;

  __device__ void operator()(int64_t row, int lane) const {
    const auto width = static_cast<float>(x.columns);
    const float mean = sum_over_row(x.columns, lane, [&](int64_t c) { return value_at(x, row, c); }) / width;
    const float squares = sum_over_row(x.columns, lane, [&](int64_t c) {
      const float v = value_at(x, row, c) - mean;
      return v * v;
    });
    const float inverse = 1 / sqrtf(squares / width + epsilon);
    store_row(y, row, lane, rounding,
              [&](int64_t c) { return (value_at(x, row, c) - mean) * inverse * weight[c] + bias[c]; });
  }
};

// Of one position's head a rotating pair's elements may belong to two lanes: all are read before one is written, since
// y may be x.
template <typename T, int kLanes, int kPieces, int kWidth>
struct HeadNorms {
  RowHeads all;
  NodeRows<T> x, y;
  float epsilon;  // 0: no norm
  const float *norm_gain, *head_gain;
  NodeRotation rotation;
  RowPositions positions;
  ValueRounding rounding;

  __device__ void operator()(int64_t warp, int warp_lane) const {
    const HeadLanes<kLanes, kPieces, kWidth> lanes(all, warp, warp_lane);
    const int d = all.head_dim, half = static_cast<int>(rotation.half);
    const T* from = x.data + lanes.row * x.stride + lanes.head * d;
    T* to = y.data + lanes.row * y.stride + lanes.head * d;
    float values[kPieces * kWidth], partners[kPieces * kWidth];
    float2 angles[kPieces * kWidth];
    lanes.load(from, d, values);
    if (half > 0) {
      lanes.load_partners(from, d, half, partners);
      lanes.load_angles(rotation.angles + int64_t{positions.position(lanes.row)} * rotary_stride(half), d, half,
                        angles);
    }
    float factor = head_gain ? head_gain[lanes.head] : 1.0f;
    if (epsilon > 0) {
      const float squares = lanes.sum(d, [&](int i, int) { return values[i] * values[i]; });
      factor *= 1 / sqrtf(squares / static_cast<float>(d) + epsilon);
    }
    __syncwarp();
    if (!lanes.exists) return;
    auto gain = [&](int c) { return norm_gain && epsilon > 0 ? norm_gain[c] : 1.0f; };
    lanes.for_columns(d, [&](int i, int c) {
      float value = values[i] * factor * gain(c);
      if (c < 2 * half) {
        const float partner = partners[i] * factor * gain(rotation_partner(c, half));
        value = c < half ? value * angles[i].x + partner * angles[i].y : value * angles[i].x - partner * angles[i].y;
      }
      values[i] = rounding(value);
    });
    lanes.store(values, d, to);
    if (lanes.head + 1 < all.heads) return;
    for (int64_t c = y.columns + lanes.lane; c < y.padded; c += kLanes)
      y.data[lanes.row * y.stride + c] = from_float<T>(0.0f);
  }
};

// A warp per sequence.
template <typename T>
struct KeepLastRows {
  NodeRows<T> x;
  int64_t positions;
  T* state;

  __device__ void operator()(int64_t sequence, int lane) const {
    const T* from = x.data + ((sequence + 1) * positions - 1) * x.stride;
    for (int64_t c = lane; c < x.columns; c += 32) state[sequence * x.columns + c] = from[c];
  }
};

template <typename T>
struct PlaceHeads {
  PlacedHeads<T> h;
  RowPositions positions;

  // Heads of a row, each followed by its padding.
  template <typename Scale>
  __device__ void place(const NodeRows<T>& from, int64_t row, int64_t heads, T* to, int lane,
                        const Scale& scale) const {
    const int shift = __ffs(static_cast<int>(h.padded)) - 1;  // the width is a power of two
    store_columns(to, heads * h.padded, lane, [&](int64_t c) {
      const int64_t within = c & (h.padded - 1), column = (c >> shift) * h.head_dim + min(within, h.head_dim - 1);
      const T value = scale(from.data[row * from.stride + column]);
      return within < h.head_dim ? value : from_float<T>(0.0f);
    });
  }
  __device__ void operator()(int64_t row, int lane) const {
    auto as_is = [](T value) { return value; };
    const int64_t width = h.kv_heads * h.padded;
    T* cached = h.cache + (positions.sequence(row) * h.capacity + positions.position(row)) * 2 * width;
    place(h.key, row, h.kv_heads, cached, lane, as_is);
    place(h.value, row, h.kv_heads, cached + width, lane, as_is);
    if (!h.query_out) return;
    place(h.query, row, h.heads, h.query_out + row * h.heads * h.padded, lane,
          [&](T value) { return from_float<T>(to_float(value) * h.query_scale); });
  }
};

}  // namespace

template <typename T>
template <typename Make>
void CudaNodeRows<T>::launch_wide(bool has_vectors_too, const Rounding& r, const NodeRows<T>& y,
                                  const Make& make) const {
  with_row_width<T>(has_vectors_too && has_row_vectors(y), [&]<int kWidth>(Width<kWidth>) {
    launch_rows(y.rows, make(RowsOut<T, kWidth>{y, ValueRounding(r)}), stream_);
  });
}

template <typename T>
template <typename Function>
void CudaNodeRows<T>::map_rows(bool has_vectors_too, const Rounding& r, const NodeRows<T>& y,
                               const Function& function) const {
  launch_wide(has_vectors_too, r, y, [&]<int kWidth>(const RowsOut<T, kWidth>& out) {
    return MapRows<T, kWidth, Function>{out, function};
  });
}

template <typename T>
void CudaNodeRows<T>::copy_last(const NodeRows<T>& from, int64_t from_positions, const NodeRows<T>& to,
                                int64_t to_positions) const {
  map_rows(has_row_vectors(from), {}, to, LastRow<T>{from, from_positions, to_positions});
}

template <typename T>
void CudaNodeRows<T>::add(const NodeRows<T>& x, const NodeRows<T>& a, const float* scale, float factor,
                          const Rounding& r, const NodeRows<T>& y) const {
  map_rows(has_row_vectors(x) && has_row_vectors(a) && is_row_vector(scale), r, y, Sum<T>{x, a, scale, factor});
}

template <typename T>
void CudaNodeRows<T>::rms_norm(const NodeRows<T>& x, const float* gain, float factor, float epsilon, const Rounding& r,
                               const NodeRows<T>& y) const {
  launch_wide(has_row_vectors(x) && is_row_vector(gain), r, y, [&]<int kWidth>(const RowsOut<T, kWidth>& out) {
    return RmsNormRows<T, kWidth>{x, gain, factor, epsilon, out};
  });
}

template <typename T>
void CudaNodeRows<T>::layer_norm(const NodeRows<T>& x, const float* weight, const float* bias, float epsilon,
                                 const Rounding& r, const NodeRows<T>& y) const {
  launch_rows(y.rows, LayerNormRows<T>{x, y, weight, bias, epsilon, ValueRounding(r)}, stream_);
}

template <typename T>
void CudaNodeRows<T>::heads(const NodeRows<T>& x, int64_t head_dim, float epsilon, const float* norm_gain,
                            const float* head_gain, const NodeRotation& rotation, const RowPositions& positions,
                            const Rounding& r, const NodeRows<T>& y) const {
  const RowHeads all(y.rows, x.columns / head_dim, head_dim);
  const bool has_all = has_row_vectors(x) && has_row_vectors(y) && has_head_vectors<T>(head_dim, rotation.half);
  launch_heads<T>(all, has_all, stream_, [&]<int kLanes, int kPieces, int kWidth>() {
    return HeadNorms<T, kLanes, kPieces, kWidth>{all,       x,        y,         epsilon,         norm_gain,
                                                 head_gain, rotation, positions, ValueRounding(r)};
  });
}

template <typename T>
void CudaNodeRows<T>::activate(Activation activation, const NodeRows<T>& x, const Rounding& r,
                               const NodeRows<T>& y) const {
  with_activation(activation, [&]<Activation kActivation>(ActivationConstant<kActivation>) {
    map_rows(has_row_vectors(x), r, y, Activated<T, kActivation>{x});
  });
}

template <typename T>
void CudaNodeRows<T>::gate(Activation activation, const NodeRows<T>& x, const NodeRows<T>& a, const Rounding& r,
                           const NodeRows<T>& y) const {
  with_activation(activation, [&]<Activation kActivation>(ActivationConstant<kActivation>) {
    map_rows(has_row_vectors(x) && has_row_vectors(a), r, y, Gated<T, kActivation>{x, a});
  });
}

template <typename T>
void CudaNodeRows<T>::mix(const NodeRows<T>& x, const NodeRows<T>& a, const float* first, const float* second,
                          const Rounding& r, const NodeRows<T>& y) const {
  map_rows(has_row_vectors(x) && has_row_vectors(a) && is_row_vector(first) && is_row_vector(second), r, y,
           Mixed<T>{x, a, first, second});
}

template <typename T>
void CudaNodeRows<T>::skip(const NodeRows<T>& x, const NodeRows<T>& a, const float* weight, const float* gate,
                           const Rounding& r, const NodeRows<T>& y) const {
  map_rows(has_row_vectors(x) && has_row_vectors(a) && is_row_vector(weight) && is_row_vector(gate), r, y,
           Skipped<T>{x, a, weight, gate});
}

template <typename T>
void CudaNodeRows<T>::smear(const NodeRows<T>& x, const float* gate, T* state, const RowPositions& positions,
                            const Rounding& r, const NodeRows<T>& y) const {
  assert(x.data != y.data);
  const bool has_all = has_row_vectors(x) && has_row_vectors(static_cast<const T*>(state), x.columns, x.columns);
  map_rows(has_all, r, y, Smeared<T>{x, gate, state, positions.positions});
  if (state) launch_rows(x.rows / positions.positions, KeepLastRows<T>{x, positions.positions, state}, stream_);
}

template <typename T>
void CudaNodeRows<T>::add_bias(const float* bias, const NodeRows<T>& y) const {
  map_rows(has_row_vectors(y), {}, y, Biased<T>{y, bias});
}

template <typename T>
void launch_place_heads(const PlacedHeads<T>& heads, const RowPositions& positions, cudaStream_t stream) {
  launch_rows(heads.key.rows, PlaceHeads<T>{heads, positions}, stream);
}

template class CudaNodeRows<float>;
template class CudaNodeRows<__nv_bfloat16>;
template class CudaNodeRows<__half>;
template void launch_place_heads(const PlacedHeads<float>&, const RowPositions&, cudaStream_t);
template void launch_place_heads(const PlacedHeads<__nv_bfloat16>&, const RowPositions&, cudaStream_t);
template void launch_place_heads(const PlacedHeads<__half>&, const RowPositions&, cudaStream_t);

}  // namespace thimble
