// cuda_qkv_epilogue.cuh: what follows the product that makes queries, keys and values of a layer, as an epilogue of
// cuda_epilogues.cuh.
#pragma once

#include "runtime/cuda/kernels/cuda_epilogues.cuh"

namespace thimble {

// Cosine and sine of four pairs of a head from `first_pair` on; pairs beyond `half` do not rotate.
__device__ inline void load_angles(const float2* rotary, int half, int position, int first_pair, float2 (&angles)[4]) {
  const float2* at = rotary + position * half + first_pair;
  if (half % 4 == 0) {  // all four or none, at a multiple of 32 bytes; without branches that lanes part at
    const auto* quads = reinterpret_cast<const float4*>(at);
    const bool exist = first_pair < half;
    const float4 none{1, 0, 1, 0}, first = exist ? quads[0] : none, second = exist ? quads[1] : none;
    angles[0] = {first.x, first.y}, angles[1] = {first.z, first.w};
    angles[2] = {second.x, second.y}, angles[3] = {second.z, second.w};
    return;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) angles[i] = first_pair + i < half ? at[i] : float2{1, 0};
}
__device__ inline void rotate(float (&v)[8], const float2 (&angles)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float2 pair = {v[2 * i], v[2 * i + 1]};
    v[2 * i] = pair.x * angles[i].x + pair.y * angles[i].y;
    v[2 * i + 1] = pair.y * angles[i].x - pair.x * angles[i].y;
  }
}

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
  int first_column;        // of the product's column 0 among all heads' columns
  float inverse_head_dim;  // 1 / d, d without padding
  float epsilon;           // of the heads' norms; 0: none
  const float2* rotary;    // (T, half): cosine, sine
  int half;
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
  kPlain,   // neither norms of heads, value embeddings nor biases
  kNormed,  // no biases
  kShared,  // no biases; rows are the distinct ones of SharedRows, stored in fp32 before their rotation, for
            // launch_spread()
  kBiased,
};
template <typename T, int kHead, QkvKind kQkv>
struct QkvEpilogue {
  static constexpr bool kPlain = kQkv == QkvKind::kPlain, kShared = kQkv == QkvKind::kShared,
                        kBiased = kQkv == QkvKind::kBiased;
  enum class Kind { kQuery, kKey, kValue };
  struct Columns {
    Kind kind;
    float scale;     // of queries and keys
    int at;          // first column within the row that is written
    int first_pair;  // of the head's pairs that rotate together
    BiasColumns<kBiased> bias;
  };
  struct Row {
    float norm;
    int sequence, position;
  };
  union Fetched {
    float2 angles[4];  // cosine and sine of a query's or a key's four pairs
    Stored8<T> added;  // the value embedding
  };
  static constexpr int kRegisterBytes = kPlain ? 224 : 176;  // see gemm_sm90::Ahead
  static constexpr bool kFetchesEarly = true;                // positions, angles, rows of tables by token
  QkvOperands<T> o;

  __device__ Columns columns(int column, bool exists) const {
    if (!exists) return {};
    int all = o.first_column + column, head = all / kHead;
    BiasColumns<kBiased> added(o.bias, all);
    if (head < o.heads) return {Kind::kQuery, o.query_scale[head], all, all % kHead / 2, added};
    return {head < o.heads + o.kv_heads ? Kind::kKey : Kind::kValue, 1, all - o.heads * kHead, all % kHead / 2, added};
  }
  __device__ Row row(int64_t row) const {
    auto r = static_cast<int>(row);
    if constexpr (kShared) return {o.norm(row), 0, o.shared.start(r) + o.shared.position(r)};  // of the text
    return {o.norm(row), o.place_of.sequence(row), o.place_of.position(row)};
  }
  __device__ Fetched fetch(const RowPlace& place, const Columns& c, const Row& row) const {
    Fetched f{};
    if (!place.exists) return f;
    if constexpr (kPlain) {
      load_angles(o.rotary, o.half, row.position, c.kind == Kind::kValue ? o.half : c.first_pair, f.angles);
    } else if (c.kind != Kind::kValue) {
      if constexpr (!kShared) load_angles(o.rotary, o.half, row.position, c.first_pair, f.angles);
    } else if (o.value_table) {
      int token = o.tokens[row.sequence * o.token_stride + row.position];
      f.added = Stored8<T>::load(o.value_table + token * o.kv_heads * kHead + c.at - o.kv_heads * kHead);
    }
    return f;
  }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns& c, const Row& row,
                        const Fetched& fetched) const {
    static_assert(kLanes * 8 % kHead == 0, "heads must lie whole in a tile");
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = c.bias.added(v[i] * row.norm, i);
    if constexpr (kPlain) {  // one way for all heads, so that those of several rows overlap
#pragma unroll
      for (float& value : v) value *= c.scale;
      rotate(v, fetched.angles);
      if (place.exists) Stored8<T>::rounded(v).store(out_of(row, place.row, c) + c.at);
      return;
    }
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
    Stored8<T>::rounded(v).store(out_of(row, place.row, c) + c.at);
  }

 private:
  // The row that is written.
  __device__ T* out_of(const Row& row, int64_t at, const Columns& c) const {
    const bool is_query = c.kind == Kind::kQuery;
    const int64_t out = is_query ? at : row.sequence * o.capacity + row.position;
    return (is_query ? o.query : o.keys) + out * ((is_query ? o.heads : 2 * o.kv_heads) * kHead);
  }
};

}  // namespace thimble
