// cuda_epilogues.cuh: what the forward pass does with each product before it reaches memory.
//
// A product's kernel hands over one row of a column tile at a time: a group of kLanes neighbouring lanes holds it,
// eight consecutive columns each, in float32. An epilogue says
//   columns(column, exists)    what it needs of its columns (scales, say), once per tile and lane;
//   row(row)                   what all lanes of a row share (its norm, say), once per tile and row;
//   fetch(place, columns, row) what a lane needs from memory for one row: several rows' fetches are issued ahead. Rows
//                              that do not exist are the last one here, and for row();
//   apply<kLanes>(...)         the arithmetic and the stores. All lanes of the warp call it, also for rows and columns
//                              that do not exist (place.exists is false): it may shuffle.
//
// An epilogue that has round_first(v) rounds each product before anything else; a kernel may call it early.
//
// The residual stream is stored without its norm: rms(u) * c is u times one number per row, and a product of scaled
// rows is the scaled product. So each epilogue that writes the stream also writes each row's sum of squares, one part
// per column tile, and each epilogue whose product reads the stream multiplies by the number that RowNorm makes of the
// parts.
#pragma once

#include "runtime/cuda/kernels/cuda_activation.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {

// Where a lane's eight values lie in the product.
struct RowPlace {
  int64_t row;
  int column;   // of the first value
  int tile;     // index of the column tile
  bool exists;  // row and column lie inside the product
};

// Where a lane reads: in a row that exists.
__device__ inline RowPlace within_rows(RowPlace place, int64_t rows) {
  place.row = min(place.row, rows - 1);
  return place;
}

// Sums of squares of rows, in parts: parts[i * capacity + row].
struct RowSquares {
  float* parts = nullptr;
  int count = 0;
  int64_t capacity = 0;

  // Stores the sum of squares of what the lanes of a row stored, as the tile's part.
  template <int kLanes>
  __device__ void store(const RowPlace& place, bool row_exists, const float (&stored)[8]) const {
    if (!parts) return;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(stored[i], stored[i], sum);
    sum = sum_over_lanes<kLanes>(sum);
    if (row_exists && threadIdx.x % kLanes == 0) parts[place.tile * capacity + place.row] = sum;
  }
};

// Does an epilogue leave such parts?
template <typename Epilogue>
constexpr bool leaves_squares = requires(Epilogue epilogue) {
  epilogue.squares;
};

// Do an epilogue's row(), but for the norm, and fetch() read only what no kernel of a step writes after its embeddings?
template <typename Epilogue>
constexpr bool fetches_early = requires {
  requires Epilogue::kFetchesEarly;
};

// c / sqrt(mean of squares + epsilon) of a row; without parts just c: 1 / sqrt(0 + 1) is exact.
struct RowNorm {
  RowSquares squares;
  float inverse_width = 0;  // 1 / D
  float c = 1;
  float epsilon = 1;

  __device__ float operator()(int64_t row) const {
    constexpr int kAtOnce = 8;  // on their way, rather than one after the other
    float sum = 0;
    for (int first = 0; first < squares.count; first += kAtOnce) {
      float parts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i)
        parts[i] = squares.parts[min(first + i, squares.count - 1) * squares.capacity + row];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) sum += first + i < squares.count ? parts[i] : 0;
    }
    return c * rsqrtf(sum * inverse_width + epsilon);
  }
};

// Which positions of which sequences the rows of a batch are: row r is position *first + offset + r % positions of
// sequence r / positions. `first` lies in device memory, so that a captured graph can move on by itself.
struct RowPositions {
  const int* first = nullptr;
  int offset = 0;
  int positions = 1;

  __device__ int sequence(int64_t row) const { return static_cast<int>(row) / positions; }
  __device__ int position(int64_t row) const { return *first + offset + static_cast<int>(row) % positions; }
};

// Windows cut from one text `step` tokens apart share rows. What a row holds before the first layer's attention depends
// on its token and the two before it, as far as its window has them, but not on its position. So the distinct rows are
// those of the text, as if it were one window, and each window's first two again.
struct SharedRows {
  static constexpr int kFirstRows = 2;
  int sequences = 0, positions = 0, step = 0;  // no positions: every row is its own

  __host__ __device__ bool exist() const { return positions > 0; }
  __host__ __device__ int text() const { return positions + (sequences - 1) * step; }
  __host__ __device__ int count() const { return text() + kFirstRows * sequences; }
  // The distinct row of a row of the batch.
  __device__ int of(int64_t row) const {
    if (!exist()) return static_cast<int>(row);
    int sequence = static_cast<int>(row) / positions, position = static_cast<int>(row) % positions;
    return position < kFirstRows ? text() + kFirstRows * sequence + position : sequence * step + position;
  }
  // Of a distinct row: where its window starts in the text, and its position there.
  __device__ int start(int distinct) const { return distinct < text() ? 0 : (distinct - text()) / kFirstRows * step; }
  __device__ int position(int distinct) const {
    return distinct < text() ? distinct : (distinct - text()) % kFirstRows;
  }
};

struct Nothing {};

template <typename Epilogue, size_t kCount>
__device__ void round_first(const Epilogue& epilogue, float (&products)[kCount]) {
  if constexpr (requires { epilogue.round_first(products[0]); }) {
    if (!epilogue.rounds_first()) return;
#pragma unroll
    for (size_t i = 0; i < kCount; ++i) epilogue.round_first(products[i]);
  }
}

// Rows whose inputs are fetched before the first is used, a power of two up to `most`: as many loads in flight as fit
// beside the columns' values in `register_bytes` per lane.
template <typename Epilogue>
__host__ __device__ constexpr int rows_ahead(int register_bytes, int most) {
  int left = register_bytes - static_cast<int>(sizeof(typename Epilogue::Columns)), rows = 1;
  while (2 * rows <= most && 2 * rows * static_cast<int>(sizeof(typename Epilogue::Fetched)) <= left) rows *= 2;
  return rows;
}

__device__ inline void load_floats(const float* at, float (&v)[8]) { Stored8<float>::load(at).unpack(v); }

// A lane's eight elements of a bias, or nothing.
template <bool kBiased>
struct BiasColumns {
  __device__ BiasColumns() {}
  __device__ BiasColumns(const float*, int) {}
  __device__ float added(float value, int) const { return value; }
};
template <>
struct BiasColumns<true> {
  float values[8];

  __device__ BiasColumns() : values{} {}
  __device__ BiasColumns(const float* bias, int column) { load_floats(bias + column, values); }
  __device__ float added(float value, int i) const { return value + values[i]; }
};

// out = product, rounded; then with a bias (N), unless null, rounded once more. Rounded to T, and before that as
// `rounding` says to fixed point. A scale is for products that are not rounded and have no bias.
template <typename T>
struct RoundedEpilogue {
  using Columns = Nothing;
  using Row = Nothing;
  using Fetched = Nothing;
  T* out;
  int64_t stride;
  Rounding rounding = {};
  const float* bias = nullptr;
  float scale = 1;

  __device__ Columns columns(int, bool) const { return {}; }
  __device__ Row row(int64_t) const { return {}; }
  __device__ Fetched fetch(const RowPlace&, const Columns&, const Row&) const { return {}; }
  __device__ bool rounds_first() const { return rounding.value != Format::kFp32; }
  __device__ void round_first(float& product) const { product = FixedPoint(rounding)(product); }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns&, const Row&, const Fetched&) const {
    if (!place.exists) return;
    if (bias) {
      float added[8];
      load_floats(bias + place.column, added);
      Stored8<T>::rounded(v).unpack(v);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] += added[i];
      thimble::round_first(*this, v);
    }
#pragma unroll
    for (float& value : v) value *= scale;
    Stored8<T>::rounded(v).store(out + place.row * stride + place.column);
  }
};

// u += scale * (product + bias).
template <typename T, bool kBiased>
struct ResidualEpilogue {
  struct Columns {
    float scale[8];
    BiasColumns<kBiased> bias;
  };
  using Row = Nothing;
  using Fetched = Stored8<T>;
  T* u;
  int64_t stride;
  const float* scale;  // (D), or null: 1
  RowSquares squares;
  int64_t rows;
  const float* bias;  // (D)

  __device__ Columns columns(int column, bool exists) const {
    Columns c{};
    if (!exists) return c;
    if (scale) {
      load_floats(scale + column, c.scale);
    } else {
#pragma unroll
      for (float& value : c.scale) value = 1;
    }
    c.bias = BiasColumns<kBiased>(bias, column);
    return c;
  }
  __device__ Row row(int64_t) const { return {}; }
  __device__ Fetched fetch(const RowPlace& place, const Columns&, const Row&) const {
    return place.exists ? Stored8<T>::load(u + place.row * stride + place.column) : Stored8<T>{};
  }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns& c, const Row&, const Fetched& old) const {
    float x[8];
    old.unpack(x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = fmaf(c.scale[i], c.bias.added(v[i], i), x[i]);
    Stored8<T> stored = Stored8<T>::rounded(x);
    if (place.exists) stored.store(u + place.row * stride + place.column);
    stored.unpack(x);
    squares.store<kLanes>(place, place.row < rows, x);
  }
};

// out = f(rms(u) c W^T + bias).
template <typename T, Activation kActivation, bool kBiased>
struct ActivationEpilogue {
  using Columns = BiasColumns<kBiased>;
  using Row = float;  // the norm
  using Fetched = Nothing;
  RowNorm norm;
  T* out;
  int64_t stride;
  const float* bias;

  __device__ Columns columns(int column, bool exists) const { return exists ? Columns(bias, column) : Columns(); }
  __device__ Row row(int64_t row) const { return norm(row); }
  __device__ Fetched fetch(const RowPlace&, const Columns&, const Row&) const { return {}; }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns& c, const Row& scale,
                        const Fetched&) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = activated<kActivation>(c.added(v[i] * scale, i));
    if (place.exists) Stored8<T>::rounded(v).store(out + place.row * stride + place.column);
  }
};

// out = f(z) * w of (z, w) = rms(u) c W^T, whose columns are four of z, four of w, and so on.
template <typename T, Activation kActivation>
struct GateEpilogue {
  using Columns = Nothing;
  using Row = float;  // the norm
  using Fetched = Nothing;
  RowNorm norm;
  T* out;
  int64_t stride;

  __device__ Columns columns(int, bool) const { return {}; }
  __device__ Row row(int64_t row) const { return norm(row); }
  __device__ Fetched fetch(const RowPlace&, const Columns&, const Row&) const { return {}; }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns&, const Row& scale, const Fetched&) const {
    float gated[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) gated[i] = activated<kActivation>(v[i] * scale) * (v[4 + i] * scale);
    if (place.exists) store_four(out + place.row * stride + place.column / 2, gated);
  }
};

// x = u + scale * product ends a layer; what the next one begins with follows at once:
// skip_out = x;  x = weight * skip_in + x, or gated;  u = mix_x * x + mix_x0 * x0.
template <typename T>
struct LayerEndEpilogue {
  // u becomes of_u (u + scale product) + of_skip skip + of_x0 x0.
  struct Columns {
    float scale[8], of_u[8], of_skip[8], of_x0[8];
  };
  using Row = int;  // of x0
  struct Fetched {
    Stored8<T> u, skip, x0;
  };
  T* u;
  int64_t stride;
  const float* scale;        // (D)
  T* skip_out;               // null: this layer's output is no skip connection
  const T* skip_in;          // null: the next layer pops none; it may pop skip_out
  const float* skip_weight;  // (D)
  const float* skip_gate;    // (D), or null: not gated
  const T* x0;               // distinct rows; null: no next layer, u becomes x
  SharedRows shared;
  const float* mix_x;   // (D)
  const float* mix_x0;  // (D)
  RowSquares squares;
  int64_t rows;

  __device__ Columns columns(int column, bool exists) const {
    Columns c{};
    if (!exists) return c;
    load_floats(scale + column, c.scale);
#pragma unroll
    for (float& value : c.of_u) value = 1;
    if (x0) load_floats(mix_x + column, c.of_u);
    if (x0) load_floats(mix_x0 + column, c.of_x0);
    if (!skip_in) return c;
    float gate[8] = {};
    load_floats(skip_weight + column, c.of_skip);
    if (skip_gate) load_floats(skip_gate + column, gate);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      c.of_skip[i] *= skip_gate ? (1 - gate[i]) * c.of_u[i] : c.of_u[i];
      if (skip_gate) c.of_u[i] *= gate[i];
    }
    return c;
  }
  __device__ Row row(int64_t row) const { return shared.of(row); }
  __device__ Fetched fetch(const RowPlace& place, const Columns&, const Row& row) const {
    Fetched f{};
    if (!place.exists) return f;
    int64_t at = place.row * stride + place.column;
    f.u = Stored8<T>::load(u + at);
    if (skip_in && skip_in != skip_out) f.skip = Stored8<T>::load(skip_in + at);
    if (x0) f.x0 = Stored8<T>::load(x0 + row * stride + place.column);
    return f;
  }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns& c, const Row&,
                        const Fetched& fetched) const {
    int64_t at = place.row * stride + place.column;
    float x[8], skip[8], start[8];
    fetched.u.unpack(x);
    fetched.skip.unpack(skip);
    fetched.x0.unpack(start);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = fmaf(c.scale[i], v[i], x[i]);
    if (skip_out) {
      Stored8<T> stored = Stored8<T>::rounded(x);
      if (place.exists) stored.store(skip_out + at);
      if (skip_in == skip_out) stored.unpack(skip);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = fmaf(c.of_u[i], x[i], fmaf(c.of_skip[i], skip[i], c.of_x0[i] * start[i]));
    Stored8<T> stored = Stored8<T>::rounded(x);
    if (place.exists) stored.store(u + at);
    stored.unpack(x);
    squares.store<kLanes>(place, place.row < rows, x);
  }
};

}  // namespace thimble
