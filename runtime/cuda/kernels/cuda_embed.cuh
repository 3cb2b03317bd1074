// cuda_embed.cuh: what a pass starts from, one row by one warp (EmbedOperands, cuda_rows.cuh).
//
// A lane's columns are pairs, 64 columns apart; kEmbedPairs of them are read before the first is needed.
#pragma once

#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/cuda/kernels/cuda_rows.cuh"

namespace thimble {

constexpr int kEmbedPairs = 8;  // of a lane

// token_pair_bucket() of token_batch.h.
__device__ inline int bucket_of(int token, int previous, int buckets) {
  if (previous < 0) return buckets - 1;
  auto mixed = static_cast<int>((36313u * static_cast<uint32_t>(token)) ^ (27191u * static_cast<uint32_t>(previous)));
  int remainder = mixed % (buckets - 1);
  return remainder < 0 ? remainder + buckets - 1 : remainder;
}

// A row's place in a token sequence; it sees nothing before `start`.
struct TokenPlace {
  const Token* start;
  int position;

  __device__ int token(int back) const { return position < back ? -1 : start[position - back]; }
};

// A lane's pair i, where a row has it, else the row's last: reads that depend on no branch do not wait in turn.
__device__ inline int column_of(int first, int i, int width) { return min(first + 64 * i, width - 2); }

// The two table rows whose sum is a position's embedding.
template <typename T>
struct EmbeddingRows {
  const T *token, *pair;

  // Of `own`, with `before` it, or -1.
  __device__ EmbeddingRows(const EmbedOperands<T>& a, int own, int before)
      : token(a.token_table + static_cast<int64_t>(own) * a.width),
        pair(a.pair_table ? a.pair_table + static_cast<int64_t>(bucket_of(own, before, a.buckets)) * a.width
                          : nullptr) {}
  // The embedding's columns first + 64 i, for as many pairs as there are; zeros beyond the row.
  __device__ void load(int first, int width, float2 (&x)[kEmbedPairs]) const {
    float2 b[kEmbedPairs] = {};
#pragma unroll
    for (int i = 0; i < kEmbedPairs; ++i) x[i] = load_pair(token + column_of(first, i, width));
    if (pair) {
#pragma unroll
      for (int i = 0; i < kEmbedPairs; ++i) b[i] = load_pair(pair + column_of(first, i, width));
    }
#pragma unroll
    for (int i = 0; i < kEmbedPairs; ++i)
      x[i] = first + 64 * i < width ? float2{x[i].x + b[i].x, x[i].y + b[i].y} : float2{0, 0};
  }
};

__device__ inline float2 scaled(const float2& x, float factor) { return {x.x * factor, x.y * factor}; }

__device__ inline float sum_of_squares(const float2 (&x)[kEmbedPairs]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kEmbedPairs; ++i) sum += x[i].x * x[i].x + x[i].y * x[i].y;
  return sum;
}

// Of the first rows' vectors, the columns first + 64 i; zeros where there is no gate.
struct EmbedVectors {
  float2 gate[kEmbedPairs] = {}, mix[kEmbedPairs] = {}, mix0[kEmbedPairs] = {};

  template <typename T>
  __device__ EmbedVectors(const EmbedOperands<T>& a, int first) {
#pragma unroll
    for (int i = 0; i < kEmbedPairs; ++i) {
      const int column = column_of(first, i, a.width);
      mix[i] = load_pair(a.first + column);
      mix0[i] = load_pair(a.second + column);
    }
    if (!a.smear_gate) return;
#pragma unroll
    for (int i = 0; i < kEmbedPairs; ++i) gate[i] = load_pair(a.smear_gate + column_of(first, i, a.width));
  }
};

// A row's embedding: what is known without its own token, then the rest.
template <typename T>
class EmbeddedRow {
 public:
  __device__ EmbeddedRow(const EmbedOperands<T>& a, const TokenPlace& place)
      : smears_(a.smear_gate && place.position > 0) {
    if (!smears_) return;
    const EmbeddingRows<T> before(a, place.token(1), place.token(2));
    before_norm_ = load_first(a, before, previous_);
  }

  // Stores row `row` of x0, u and the squares; `token`: at the place that the constructor got.
  __device__ void store(const EmbedOperands<T>& a, const TokenPlace& place, int token, int64_t row) {
    const EmbeddingRows<T> own(a, token, place.token(1));
    EmbedVectors vectors(a, own_column());
    float2 x[kEmbedPairs];
    const float own_norm = load_first(a, own, x);
    float sum = 0;
    for (int first = own_column();;) {
#pragma unroll
      for (int i = 0; i < kEmbedPairs; ++i) {
        const int column = first + 64 * i;
        if (column >= a.width) continue;
        float2 value = scaled(x[i], own_norm);
        if (a.smear_gate) {
          const float2 last = scaled(previous_[i], before_norm_), gate = vectors.gate[i];
          value = {(1 - gate.x) * value.x + gate.x * last.x, (1 - gate.y) * value.y + gate.y * last.y};
        }
        value = store_pair(a.x0 + row * a.width + column, value);
        const float2 mix = vectors.mix[i], mix0 = vectors.mix0[i];
        const float2 stored = store_pair(a.u + row * a.width + column,
                                         {mix.x * value.x + mix0.x * value.x, mix.y * value.y + mix0.y * value.y});
        sum += stored.x * stored.x + stored.y * stored.y;
      }
      first += kLaneColumns;
      if (first >= a.width) break;
      own.load(first, a.width, x);
      if (smears_) EmbeddingRows<T>(a, place.token(1), place.token(2)).load(first, a.width, previous_);
      vectors = EmbedVectors(a, first);
    }
    sum = sum_over_lanes<32>(sum);
    for (int part = lane(); part < a.squares.count; part += 32)
      a.squares.parts[part * a.squares.capacity + row] = part == 0 ? sum : 0;
  }

 private:
  static constexpr int kLaneColumns = 64 * kEmbedPairs;  // of a warp's lanes at once

  static __device__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ int own_column() { return 2 * lane(); }
  // Reads a lane's first pairs of a row; its norm, of all.
  static __device__ float load_first(const EmbedOperands<T>& a, const EmbeddingRows<T>& row, float2 (&x)[kEmbedPairs]) {
    float sum = 0;
    for (int first = own_column() + kLaneColumns; first < a.width; first += kLaneColumns) {
      row.load(first, a.width, x);
      sum += sum_of_squares(x);
    }
    row.load(own_column(), a.width, x);
    return 1 / sqrtf(sum_over_lanes<32>(sum + sum_of_squares(x)) * a.inverse_width + a.epsilon);
  }

  bool smears_;
  float2 previous_[kEmbedPairs] = {};
  float before_norm_ = 0;
};

}  // namespace thimble
