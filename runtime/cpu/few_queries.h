// few_queries.h: attention of one query to many keys, as cached generation has it, which is bound by reading keys and
// values: all query heads that share them are computed at once, so that each is read once. In packets of Eigen; for
// kernel files alone (kernel_rows.h).
#pragma once

#include "runtime/cpu/kernel_rows.h"

namespace thimble {
namespace {

using Packet = Eigen::internal::packet_traits<float>::type;
constexpr int64_t kLanes = Eigen::internal::packet_traits<float>::size;
// Keys or values that stay in the nearer caches while several heads read them.
constexpr int64_t kKeyBlock = 256;
constexpr int64_t kPacketsAtOnce = 4;  // of a value

template <typename Rows>
Packet packet_at(const Rows& rows, int64_t r, int64_t c) {
  return bits_as<Packet>(rows.template at<static_cast<int>(kLanes)>(r, c));
}

// scores[h * stride + j] = q_h . k_j for kHeads heads and keys [first, first + keys); d a multiple of kLanes.
template <int kHeads, typename Rows>
void score_keys(const float* q, const Rows& k, int64_t first, int64_t keys, int64_t d, float* scores, int64_t stride) {
  using namespace Eigen::internal;
  constexpr int kAtOnce = kHeads > 2 ? 2 : 4;
  auto score = [&]<int kKeys>(int64_t j) {
    Packet sums[kKeys][kHeads];
    for (int i = 0; i < kKeys; ++i)
      for (int h = 0; h < kHeads; ++h) sums[i][h] = pset1<Packet>(0);
    for (int64_t c = 0; c < d; c += kLanes)
      for (int i = 0; i < kKeys; ++i) {
        const Packet key = packet_at(k, first + j + i, c);
        for (int h = 0; h < kHeads; ++h) sums[i][h] = pmadd(ploadu<Packet>(q + h * d + c), key, sums[i][h]);
      }
    for (int h = 0; h < kHeads; ++h)
      for (int i = 0; i < kKeys; ++i) scores[h * stride + j + i] = predux(sums[i][h]);
  };
  int64_t j = 0;
  for (; j + kAtOnce <= keys; j += kAtOnce) score.template operator()<kAtOnce>(j);
  for (; j < keys; ++j) score.template operator()<1>(j);
}

// y_h += sum over j of weights[h * stride + j] v_j, of the same.
template <int kHeads, typename Rows>
void add_values(const float* weights, int64_t stride, const Rows& v, int64_t first, int64_t keys, int64_t d, float* y) {
  using namespace Eigen::internal;
  auto add = [&]<int kPackets>(int64_t c) {
    Packet sums[kHeads][kPackets];
    for (int h = 0; h < kHeads; ++h)
      for (int p = 0; p < kPackets; ++p) sums[h][p] = ploadu<Packet>(y + h * d + c + p * kLanes);
    for (int64_t j = 0; j < keys; ++j)
      for (int p = 0; p < kPackets; ++p) {
        const Packet value = packet_at(v, first + j, c + p * kLanes);
        for (int h = 0; h < kHeads; ++h) sums[h][p] = pmadd(pset1<Packet>(weights[h * stride + j]), value, sums[h][p]);
      }
    for (int h = 0; h < kHeads; ++h)
      for (int p = 0; p < kPackets; ++p) pstoreu(y + h * d + c + p * kLanes, sums[h][p]);
  };
  int64_t c = 0;
  for (; c + kPacketsAtOnce * kLanes <= d; c += kPacketsAtOnce * kLanes) add.template operator()<kPacketsAtOnce>(c);
  for (; c < d; c += kLanes) add.template operator()<1>(c);
}

// body.operator()<heads>(first) for `heads` heads, up to four at a time.
template <typename Body>
void for_heads(int64_t heads, const Body& body) {
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4) body.template operator()<4>(h);
  if (h + 2 <= heads) {
    body.template operator()<2>(h);
    h += 2;
  }
  if (h < heads) body.template operator()<1>(h);
}

// Of all heads of a tile, for one of its queries; Rows as the tile's keys and values are. Scores (heads, keys) go to
// the scratch.
template <typename Rows>
void attend_in_packets(const AttentionTile& t, int64_t row, float* y, const AttentionRoundings& roundings) {
  const int64_t first = first_key(t, row), keys = t.first_position + row + 1 - first, d = t.head_dim;
  const float* q = t.q + row * t.q_stride;
  const Rows k(t.k), v(t.v);
  for (int64_t j = 0; j < keys; j += kKeyBlock)
    for_heads(t.heads, [&]<int kHeads>(int64_t h) {
      score_keys<kHeads>(q + h * d, k, first + j, std::min(kKeyBlock, keys - j), d, t.scratch + h * keys + j, keys);
    });
  for (int64_t h = 0; h < t.heads; ++h) {
    float* scores = t.scratch + h * keys;
    round_row(roundings.scores, scores, keys);
    Row(scores, keys) *= exponentiate(scores, keys, keys, t.scale);
    round_row(roundings.weights, scores, keys);
    Row(y + h * d, d).setZero();
  }
  for (int64_t j = 0; j < keys; j += kKeyBlock)
    for_heads(t.heads, [&]<int kHeads>(int64_t h) {
      add_values<kHeads>(t.scratch + h * keys + j, keys, v, first + j, std::min(kKeyBlock, keys - j), d, y + h * d);
    });
}

// The same of heads whose width is no multiple of a packet's.
inline void attend_by_head(const AttentionTile& t, int64_t row, float* y, const AttentionRoundings& roundings) {
  const int64_t first = first_key(t, row), keys = t.first_position + row + 1 - first, d = t.head_dim;
  const FloatValues k(t.k.block_rows(first, keys)), v(t.v.block_rows(first, keys));
  for (int64_t h = 0; h < t.heads; ++h) {
    Eigen::Map<Eigen::VectorXf> scores(t.scratch, keys), out(y + h * d, d);
    scores.noalias() = map(k.view()) * Eigen::Map<const Eigen::VectorXf>(t.q + row * t.q_stride + h * d, d);
    round_row(roundings.scores, t.scratch, keys);
    scores *= exponentiate(t.scratch, keys, keys, t.scale);
    round_row(roundings.weights, t.scratch, keys);
    out.noalias() = map(v.view()).transpose() * scores;
  }
}

inline void attend_one_row(const AttentionTile& t, int64_t row, float* y, const AttentionRoundings& roundings) {
  if (t.head_dim % kLanes != 0) return attend_by_head(t, row, y, roundings);
  if (t.k.is_float32()) return attend_in_packets<FloatElements>(t, row, y, roundings);
  attend_in_packets<Bf16Elements>(t, row, y, roundings);
}

}  // namespace
}  // namespace thimble
