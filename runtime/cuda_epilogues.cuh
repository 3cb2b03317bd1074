// cuda_epilogues.cuh: what the forward pass does with each product while it still lies in registers.
//
// The residual stream is stored without its norm: rms(u) * c is u times one number per row, and a product of scaled
// rows is the scaled product. So each epilogue that writes the stream also writes each row's sum of squares, one part
// per column tile, and each epilogue whose product reads the stream multiplies by the number that RowNorm makes of the
// parts.
#pragma once

#include "runtime/cuda_gemm.cuh"

namespace thimble {

// Sums of squares of rows, in parts: parts[i * capacity + row].
struct RowSquares {
  float* parts = nullptr;
  int count = 0;
  int64_t capacity = 0;
};

// c / sqrt(mean of squares + epsilon) of a row.
struct RowNorm {
  RowSquares squares;
  float inverse_width = 0;  // 1 / D
  float c = 1;

  __device__ float operator()(int64_t row) const {
    float sum = 0;
    for (int i = 0; i < squares.count; ++i) sum += squares.parts[i * squares.capacity + row];
    return c / sqrtf(sum * inverse_width + kNormEpsilon);
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

// Calls body(upper half?, j) for the lane's pairs that exist.
template <int kColumns, typename Body>
__device__ void for_each_pair(const FragmentPlace& place, const Body& body) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (place.row + 8 * half >= place.rows) continue;
#pragma unroll
    for (int j = 0; j < kColumns / 8; ++j)
      if (place.column + 8 * j < place.columns) body(half, j);
  }
}

// Adds the squares of what was stored, as this tile's part of each row.
__device__ inline void store_squares(const RowSquares& squares, const FragmentPlace& place, float upper, float lower) {
  upper = sum_over_lanes<4>(upper);
  lower = sum_over_lanes<4>(lower);
  if (threadIdx.x % 4 != 0) return;
  float* part = squares.parts + place.tile * squares.capacity;
  if (place.row < place.rows) part[place.row] = upper;
  if (place.row + 8 < place.rows) part[place.row + 8] = lower;
}

// out = scale * product.
template <typename T>
struct ScaledEpilogue {
  T* out;
  int64_t stride;
  float scale;

  template <int kColumns>
  __device__ void apply(FragmentValues<kColumns>& value, const FragmentPlace& place) const {
    for_each_pair<kColumns>(place, [&](int half, int j) {
      store_pair(out + (place.row + 8 * half) * stride + place.column + 8 * j,
                 {scale * value[j][2 * half], scale * value[j][2 * half + 1]});
    });
  }
};

// Queries, keys and values of one layer from rms(u) c: per-head norms, rotation, gains, value embeddings.
// Columns: H query heads, G key heads, G value heads, each kHead wide. Head rows of the weights are stored so that the
// pairs which rotate together are neighbours (cuda_model.cuh).
template <typename T, int kHead>
struct QkvEpilogue {
  RowNorm norm;
  RowPositions place_of;
  T* query;  // (rows, H * kHead)
  T* keys;   // (S * capacity, 2 G * kHead): keys, then values
  int64_t capacity;
  int heads, kv_heads;
  int first_column;        // of the product's column 0 among all heads' columns
  float inverse_head_dim;  // 1 / d, d without padding
  const float2* rotary;    // (T, half): cosine, sine
  int half;
  const float* gain;       // (H)
  const T* value_table;    // (V, G * kHead) scaled value embeddings, or null
  float value_scale;       // this layer's
  const uint16_t* tokens;  // (S, token_stride)
  int64_t token_stride;

  template <int kColumns>
  __device__ void apply(FragmentValues<kColumns>& value, const FragmentPlace& place) const {
    static_assert(kColumns % kHead == 0);
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      int64_t row = place.row + 8 * side;
      bool exists = row < place.rows;  // all lanes stay for the shuffles
      int64_t safe = exists ? row : place.rows - 1;
      float scale = norm(safe);
      int sequence = place_of.sequence(safe), position = place_of.position(safe);
      int64_t kv_row = sequence * capacity + position;
      const float2* angles = rotary + static_cast<int64_t>(position) * half;
#pragma unroll
      for (int h = 0; h < kColumns / kHead; ++h) {
        int column = first_column + place.column + h * kHead;  // this lane's first of the head
        int head = column / kHead, within = column % kHead;
        if (place.column + h * kHead >= place.columns) continue;  // the same for all lanes: heads exist whole
        float2 pair[kHead / 8];
#pragma unroll
        for (int j = 0; j < kHead / 8; ++j)
          pair[j] = {value[h * (kHead / 8) + j][2 * side] * scale, value[h * (kHead / 8) + j][2 * side + 1] * scale};
        T* out;
        if (head < heads + kv_heads) {
          bool is_query = head < heads;
          float squares = 0;
#pragma unroll
          for (int j = 0; j < kHead / 8; ++j) squares += pair[j].x * pair[j].x + pair[j].y * pair[j].y;
          squares = sum_over_lanes<4>(squares);
          float factor = (is_query ? gain[head] : 1.0f) / sqrtf(squares * inverse_head_dim + kNormEpsilon);
#pragma unroll
          for (int j = 0; j < kHead / 8; ++j) {
            int rotated = (within + 8 * j) / 2;
            float2 p = {pair[j].x * factor, pair[j].y * factor};
            if (rotated < half) {
              float2 angle = angles[rotated];
              p = {p.x * angle.x + p.y * angle.y, p.y * angle.x - p.x * angle.y};
            }
            pair[j] = p;
          }
          out = is_query ? query + row * heads * kHead + column
                         : keys + kv_row * 2 * kv_heads * kHead + column - heads * kHead;
        } else {
          int value_column = column - (heads + kv_heads) * kHead;
          if (value_table) {
            const T* added = value_table +
                             static_cast<int64_t>(tokens[sequence * token_stride + position]) * kv_heads * kHead +
                             value_column;
#pragma unroll
            for (int j = 0; j < kHead / 8; ++j) {
              float2 v = load_pair(added + 8 * j);
              pair[j] = {pair[j].x + value_scale * v.x, pair[j].y + value_scale * v.y};
            }
          }
          out = keys + kv_row * 2 * kv_heads * kHead + kv_heads * kHead + value_column;
        }
        if (!exists) continue;
#pragma unroll
        for (int j = 0; j < kHead / 8; ++j) store_pair(out + 8 * j, pair[j]);
      }
    }
  }
};

// u += scale * product, after the attention.
template <typename T>
struct AttentionResidualEpilogue {
  T* u;
  int64_t stride;
  const float* scale;  // (D)
  RowSquares squares;

  template <int kColumns>
  __device__ void apply(FragmentValues<kColumns>& value, const FragmentPlace& place) const {
    float sums[2] = {};
    for_each_pair<kColumns>(place, [&](int half, int j) {
      int column = place.column + 8 * j;
      T* at = u + (place.row + 8 * half) * stride + column;
      float2 old = load_pair(at), s = load_pair(scale + column);
      float2 stored = store_pair(at, {old.x + s.x * value[j][2 * half], old.y + s.y * value[j][2 * half + 1]});
      sums[half] += stored.x * stored.x + stored.y * stored.y;
    });
    store_squares(squares, place, sums[0], sums[1]);
  }
};

// out = leaky_relu(rms(u) c W^T, 0.5)^2.
template <typename T>
struct ActivationEpilogue {
  RowNorm norm;
  T* out;
  int64_t stride;

  template <int kColumns>
  __device__ void apply(FragmentValues<kColumns>& value, const FragmentPlace& place) const {
    float scale[2] = {norm(min(place.row, place.rows - 1)), norm(min(place.row + 8, place.rows - 1))};
    for_each_pair<kColumns>(place, [&](int half, int j) {
      float2 z = {value[j][2 * half] * scale[half], value[j][2 * half + 1] * scale[half]};
      z = {z.x < 0 ? 0.5f * z.x : z.x, z.y < 0 ? 0.5f * z.y : z.y};
      store_pair(out + (place.row + 8 * half) * stride + place.column + 8 * j, {z.x * z.x, z.y * z.y});
    });
  }
};

// x = u + scale * product ends a layer; what the next one begins with follows at once:
// skip_out = x;  x = weight * skip_in + x, or gated;  u = mix_x * x + mix_x0 * x0.
template <typename T>
struct LayerEndEpilogue {
  T* u;
  int64_t stride;
  const float* scale;        // (D)
  T* skip_out;               // null: this layer's output is no skip connection
  const T* skip_in;          // null: the next layer pops none
  const float* skip_weight;  // (D)
  const float* skip_gate;    // (D), or null: not gated
  const T* x0;               // null: no next layer, u becomes x
  const float* mix_x;        // (D)
  const float* mix_x0;       // (D)
  RowSquares squares;

  template <int kColumns>
  __device__ void apply(FragmentValues<kColumns>& value, const FragmentPlace& place) const {
    float sums[2] = {};
    for_each_pair<kColumns>(place, [&](int half, int j) {
      int column = place.column + 8 * j;
      int64_t at = (place.row + 8 * half) * stride + column;
      float2 x = load_pair(u + at), s = load_pair(scale + column);
      x = {x.x + s.x * value[j][2 * half], x.y + s.y * value[j][2 * half + 1]};
      if (skip_out) store_pair(skip_out + at, x);
      if (skip_in) {
        float2 skip = load_pair(skip_in + at), w = load_pair(skip_weight + column);
        skip = {skip.x * w.x, skip.y * w.y};
        if (skip_gate) {
          float2 g = load_pair(skip_gate + column);
          x = {(1 - g.x) * skip.x + g.x * x.x, (1 - g.y) * skip.y + g.y * x.y};
        } else {
          x = {skip.x + x.x, skip.y + x.y};
        }
      }
      if (x0) {
        float2 start = load_pair(x0 + at), a = load_pair(mix_x + column), b = load_pair(mix_x0 + column);
        x = {a.x * x.x + b.x * start.x, a.y * x.y + b.y * start.y};
      }
      float2 stored = store_pair(u + at, x);
      sums[half] += stored.x * stored.x + stored.y * stored.y;
    });
    store_squares(squares, place, sums[0], sums[1]);
  }
};

__device__ inline float soft_capped(float logit, float cap) { return cap * tanhf(logit / cap); }

// Softcapped logits in fp32.
struct LogitsEpilogue {
  RowNorm norm;
  float cap;
  float* out;  // (rows, stride)
  int64_t stride;

  template <int kColumns>
  __device__ void apply(FragmentValues<kColumns>& value, const FragmentPlace& place) const {
    float scale[2] = {norm(min(place.row, place.rows - 1)), norm(min(place.row + 8, place.rows - 1))};
    for_each_pair<kColumns>(place, [&](int half, int j) {
      store_pair(
          out + (place.row + 8 * half) * stride + place.column + 8 * j,
          {soft_capped(value[j][2 * half] * scale[half], cap), soft_capped(value[j][2 * half + 1] * scale[half], cap)});
    });
  }
};

// Cross-entropy without logits in memory: per row and column tile the largest logit and the sum of exponentials above
// it, and the target's own logit. finish_loss() puts the tiles together.
struct LossEpilogue {
  RowNorm norm;
  float cap;
  const uint16_t* targets;  // (rows)
  int vocabulary;           // columns beyond it are padding
  float2* parts;            // (tiles, rows): maximum, sum of exp(logit - maximum)
  float* target_logits;     // (rows)

  template <int kColumns>
  __device__ void apply(FragmentValues<kColumns>& value, const FragmentPlace& place) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      int64_t row = place.row + 8 * half;
      bool exists = row < place.rows;
      float scale = norm(exists ? row : place.rows - 1);
      int target = exists ? targets[row] : -1;
      float peak = -INFINITY;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          int column = place.column + 8 * j + i;
          float logit = soft_capped(value[j][2 * half + i] * scale, cap);
          if (column >= vocabulary) logit = -INFINITY;
          if (column == target) target_logits[row] = logit;
          value[j][2 * half + i] = logit;
          peak = fmaxf(peak, logit);
        }
      }
      peak = max_over_lanes<4>(peak);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < kColumns / 8; ++j)
        sum += expf(value[j][2 * half] - peak) + expf(value[j][2 * half + 1] - peak);
      sum = sum_over_lanes<4>(sum);
      if (exists && threadIdx.x % 4 == 0) parts[place.tile * place.rows + row] = {peak, sum};
    }
  }
};

}  // namespace thimble
