// cuda_qkv_epilogue.cuh: what follows the product that makes queries, keys and values of a layer, as an epilogue of
// cuda_epilogues.cuh.
#pragma once

#include "runtime/cuda/kernels/cuda_epilogues.cuh"
#include "runtime/cuda/kernels/cuda_rotary.cuh"

namespace thimble {

// Queries, keys and values of one layer from rms(u) c: biases, per-head norms, rotation, gains, value embeddings.
// Columns: H query heads, G key heads, G value heads, each kHead wide. Head rows of the weights are stored so that the
// pairs which rotate together are neighbours (cuda_network_weights.cuh).
template <typename T>
struct QkvOperands {
  RowNorm norm;
  RowPositions place_of;
  T* query;  // (rows, H * kHead)
  T* keys;   // (S * capacity, 2 G * kHead): keys, then values
  int64_t capacity;
  int heads, kv_heads;
  int first_column;          // of the product's column 0 among all heads' columns
  float inverse_head_dim;    // 1 / d, d without padding
  float epsilon;             // of the heads' norms; 0: none
  const float2* rotary;      // see cuda_rotary.cuh
  int half;                  // 0: heads do not rotate
  const float2* identity;    // four pairs of (1, 0)
  const float* query_scale;  // (H)
  const T* value_table;      // (V, G * kHead) value embeddings, or null
  float value_scale;         // this layer's
  const int32_t* tokens;     // (S, token_stride)
  int64_t token_stride;
  SharedRows shared;
  float* unrotated;   // (distinct rows, (H + 2G) * kHead)
  const float* bias;  // ((H + 2G) * kHead), as the weights' rows
};
enum class QkvKind {
  kUnbiased,
  kShared,  // no biases; rows are the distinct ones of SharedRows, stored in fp32 before their rotation, for
            // launch_spread()
  kBiased,
};
template <typename T, int kHead, QkvKind kQkv>
struct QkvEpilogue {
  static constexpr bool kShared = kQkv == QkvKind::kShared, kBiased = kQkv == QkvKind::kBiased;
  enum class Kind { kQuery, kKey, kValue };
  struct Columns {
    Kind kind;
    float scale;      // of queries and keys
    T* out;           // what is written of row 0
    int stride;       // from there to the next row
    int first_input;  // of the head's pairs, or of the columns of value embeddings
    BiasColumns<kBiased> bias;
  };
  struct Row {
    float norm;
    int position, cached;  // the row of the cache
    int token;             // 0 without value embeddings
  };
  union Fetched {
    float4 halves[2];
    float2 angles[kRotaryQuad];  // of a query's or a key's pairs
    Stored8<T> added;            // the value embedding
  };
  static constexpr bool kFetchesEarly = true;  // positions, angles, rows of tables by token
  QkvOperands<T> o;

  __device__ Columns columns(int column, bool exists) const {
    if (!exists) return {};
    const int all = o.first_column + column, head = all / kHead, queries = o.heads * kHead, keys = o.kv_heads * kHead;
    const BiasColumns<kBiased> added(o.bias, all);
    const int first_pair = all % kHead / 2;
    if (head < o.heads) return {Kind::kQuery, o.query_scale[head], o.query + all, queries, first_pair, added};
    T* out = o.keys + all - queries;
    if (head < o.heads + o.kv_heads) return {Kind::kKey, 1, out, 2 * keys, first_pair, added};
    return {Kind::kValue, 1, out, 2 * keys, all - queries - keys, added};
  }
  __device__ Row row(int64_t row) const {
    auto r = static_cast<int>(row);
    if constexpr (kShared) {  // of the text
      const int position = o.shared.start(r) + o.shared.position(r);
      return {o.norm(row), position, 0, o.value_table ? o.tokens[position] : 0};
    }
    const int sequence = o.place_of.sequence(row), position = o.place_of.position(row);
    return {o.norm(row), position, sequence * static_cast<int>(o.capacity) + position,
            o.value_table ? o.tokens[sequence * o.token_stride + position] : 0};
  }
  // Loads without conditions: what a branch or a choice follows would be waited for as soon as it is asked for.
  __device__ Fetched fetch(const RowPlace&, const Columns& c, const Row& row) const {
    const bool is_value = c.kind == Kind::kValue, rotates = !kShared && !is_value && c.first_input < o.half;
    const float2* angles = rotates ? o.rotary + row.position * rotary_stride(o.half) + c.first_input : o.identity;
    const auto* from = reinterpret_cast<const float4*>(angles);
    const bool adds = is_value && o.value_table;
    if (adds) from = reinterpret_cast<const float4*>(o.value_table + row.token * (o.kv_heads * kHead) + c.first_input);
    return {.halves = {from[0], from[adds && sizeof(T) == 2 ? 0 : 1]}};
  }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns& c, const Row& row,
                        const Fetched& fetched) const {
    static_assert(kLanes * 8 % kHead == 0, "heads must lie whole in a tile");
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = c.bias.added(v[i] * row.norm, i);
    float factor = c.scale;
    if (o.epsilon > 0) {
      float squares = 0;
#pragma unroll
      for (float value : v) squares = fmaf(value, value, squares);
      factor *= rsqrtf(sum_over_lanes<kHead / 8>(squares) * o.inverse_head_dim + o.epsilon);
    }
    if (!place.exists) return;
    if (c.kind != Kind::kValue) {
#pragma unroll
      for (float& value : v) value *= factor;
      if constexpr (!kShared) rotate(v, fetched.angles);
    } else if (o.value_table) {
      float added[8];
      fetched.added.unpack(added);
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = fmaf(o.value_scale, added[i], v[i]);
    }
    if constexpr (kShared) {
      Stored8<float>::rounded(v).store(o.unrotated + place.row * (o.heads + 2 * o.kv_heads) * kHead + place.column);
      return;
    }
    Stored8<T>::rounded(v).store(out_of(place, c, row));
  }

 private:
  __device__ T* out_of(const RowPlace& place, const Columns& c, const Row& row) const {
    return c.out + int64_t{c.kind == Kind::kQuery ? static_cast<int>(place.row) : row.cached} * c.stride;
  }
};

}  // namespace thimble
