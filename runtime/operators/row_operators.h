// row_operators.h: softmax, norms and cross-entropy of rows in low-precision storage, written once: for the host
// (operators.cpp), CUDA (cuda_operators.cu) and HIP (scripts/hip-check). Storage is converted to float32, everything is
// computed in float32, and the result is rounded once to the output's type. Sums have a fixed order and no atomics.
//
// An operation is a struct of its arguments; operator()(team, row, r) computes row r of (rows, cols) with what
// row_access.h describes. All matrices are contiguous. Outputs may not overlap inputs.
#pragma once

#include <cmath>

#include "runtime/tensor/row_access.h"

namespace thimble {

// sum over exp(scale * (x - peak)), peak = max x.
struct ExponentialSum {
  float peak, sum;
};

// 0 for masked elements, x = -infinity, also where everything is masked so far.
THIMBLE_HOST_DEVICE inline float exponential(float x, float peak, float scale) {
  return x == -INFINITY ? 0.0f : expf((x - peak) * scale);
}

THIMBLE_HOST_DEVICE inline ExponentialSum join_sums(const ExponentialSum& a, const ExponentialSum& b, float scale) {
  float peak = fmaxf(a.peak, b.peak);
  return {peak, a.sum * exponential(a.peak, peak, scale) + b.sum * exponential(b.peak, peak, scale)};
}

// Peak and sum of a row. In a held row, each x becomes its exponential on the way. A streamed row is read once: the sum
// follows the peak as it grows (Milakov and Gimelshein, arXiv 1805.02867). `scale` >= 0.
template <typename Team, typename Row>
THIMBLE_HOST_DEVICE ExponentialSum exponential_sum(const Team& team, Row& row, float scale) {
  auto peak_of = [](const auto& values, int count, float peak) {
    for (int i = 0; i < static_cast<int>(sizeof(values) / sizeof(float)); ++i)
      if (i < count) peak = fmaxf(peak, values[i]);
    return peak;
  };
  if constexpr (Row::kIsHeld) {
    float peak = team.template join<float>(
        [&](int lane) {
          float own = -INFINITY;
          row.for_each_pack(lane, team.lanes(),
                            [&](auto& values, int64_t, int count) { own = peak_of(values, count, own); });
          return own;
        },
        [](float a, float b) { return fmaxf(a, b); });
    float sum = team.template join<float>(
        [&](int lane) {
          float own = 0;
          row.for_each_pack(lane, team.lanes(), [&](auto& values, int64_t, int count) {
            for (int i = 0; i < static_cast<int>(sizeof(values) / sizeof(float)); ++i)
              if (i < count) own += values[i] = exponential(values[i], peak, scale);
          });
          return own;
        },
        [](float a, float b) { return a + b; });
    return {peak, sum};
  } else {
    return team.template join<ExponentialSum>(
        [&](int lane) {
          ExponentialSum own{-INFINITY, 0};
          row.for_each_pack(lane, team.lanes(), [&](auto& values, int64_t, int count) {
            float peak = peak_of(values, count, own.peak);
            own = {peak, own.sum * exponential(own.peak, peak, scale)};
            for (int i = 0; i < static_cast<int>(sizeof(values) / sizeof(float)); ++i)
              if (i < count) own.sum += exponential(values[i], peak, scale);
          });
          return own;
        },
        [&](const ExponentialSum& a, const ExponentialSum& b) { return join_sums(a, b, scale); });
  }
}

// Computes row r of y (rows, cols) pack by pack: compute(values, first column, count, out) gives out[0 .. count).
template <typename In, typename Out, typename Team, typename Row, typename Compute>
THIMBLE_HOST_DEVICE void write_row(const Team& team, Row& row, Out* y, int64_t cols, int64_t r,
                                   const Compute& compute) {
  constexpr int kPack = kPackOf<In, Out>;
  Out* to = y + r * cols;
  bool aligned = packs_are_aligned<Out, kPack>(y, cols);
  team.for_each_lane([&](int lane) {
    row.for_each_pack(lane, team.lanes(), [&](auto& values, int64_t first, int count) {
      float out[kPack];
      compute(values, first, count, out);
      write_pack<Out, kPack>(to + first, aligned, count, out);
    });
  });
}

// y = softmax(scale * x): exp(scale * (x - max x)) / sum of these. With integer codes x and their scale, dequantization
// and softmax in one pass: differences of codes are exact. A row that is masked altogether (-infinity) or has a NaN or
// +infinity becomes NaN.
template <typename InType, typename OutType>
struct SoftmaxRow {
  using In = InType;
  using Out = OutType;
  const In* x;  // (rows, cols)
  Out* y;       // (rows, cols)
  int64_t cols;
  const float* scale;  // (rows), finite and >= 0; null: 1

  template <typename Team, typename Row>
  THIMBLE_HOST_DEVICE void operator()(const Team& team, Row& row, int64_t r) const {
    float factor = scale ? scale[r] : 1.0f;
    ExponentialSum all = exponential_sum(team, row, factor);
    float inverse = 1.0f / all.sum;
    write_row<In>(team, row, y, cols, r, [&](const auto& values, int64_t, int, auto& out) {
      for (int i = 0; i < kPackOf<In, Out>; ++i)
        out[i] = (Row::kIsHeld ? values[i] : exponential(values[i], all.peak, factor)) * inverse;
    });
  }
};

// nll = ln(sum exp(x)) - x[target], of one target per row.
template <typename InType, typename OutType>
struct CrossEntropyRow {
  using In = InType;
  using Out = OutType;
  const In* x;  // (rows, cols)
  Out* nll;     // (rows)
  int64_t cols;
  const int32_t* targets;  // (rows), in [0, cols)

  template <typename Team, typename Row>
  THIMBLE_HOST_DEVICE void operator()(const Team& team, Row& row, int64_t r) const {
    ExponentialSum all = exponential_sum(team, row, 1.0f);
    float target = StorageTraits<In>::load(x[r * cols + targets[r]]);
    // The difference first: it is small where the loss is.
    float loss = (all.peak - target) + logf(all.sum);
    team.for_each_lane([&](int lane) {
      if (lane == 0) nll[r] = StorageTraits<Out>::store(loss);
    });
  }
};

// What norms may multiply and add per column; null: 1 and 0.
struct NormGains {
  const float* weight;  // (cols)
  const float* bias;    // (cols)

  template <int kPack>
  THIMBLE_HOST_DEVICE void apply(int64_t first, int64_t cols, int count, float (&values)[kPack]) const {
    float gains[kPack];
    if (weight) {
      read_pack<float, kPack>(weight + first, packs_are_aligned<float, kPack>(weight, cols), count, gains);
      for (int i = 0; i < kPack; ++i) values[i] *= gains[i];
    }
    if (bias) {
      read_pack<float, kPack>(bias + first, packs_are_aligned<float, kPack>(bias, cols), count, gains);
      for (int i = 0; i < kPack; ++i) values[i] += gains[i];
    }
  }
};

// Count, mean and summed squared distance from it (Welford 1962; joined as by Chan, Golub and LeVeque 1979). The mean
// is an unevaluated sum of two floats: one alone would cost rows that lie far from 0 the digits of their differences.
struct Moments {
  float count, mean, mean_low, squares;

  // mean + mean_low += delta, exactly (Knuth's two-sum).
  THIMBLE_HOST_DEVICE void move_mean(float delta) {
    float sum = mean + delta, part = sum - mean;
    mean_low += (mean - (sum - part)) + (delta - part);
    mean = sum;
  }
  THIMBLE_HOST_DEVICE float distance(float x) const { return (x - mean) - mean_low; }

  // Values values[0 .. added), added > 0.
  template <int kPack>
  THIMBLE_HOST_DEVICE void add(const float (&values)[kPack], int added) {
    if (count == 0) mean = values[0];
    float sum = 0;
    for (int i = 0; i < kPack; ++i)
      if (i < added) sum += distance(values[i]);
    auto weight = static_cast<float>(added);
    float own_mean = sum / weight, own_squares = 0, share = weight / (count + weight);
    for (int i = 0; i < kPack; ++i)
      if (i < added) own_squares += (distance(values[i]) - own_mean) * (distance(values[i]) - own_mean);
    squares += own_squares + own_mean * own_mean * count * share;
    move_mean(own_mean * share);
    count += weight;
  }
};

THIMBLE_HOST_DEVICE inline Moments join_moments(const Moments& a, const Moments& b) {
  if (b.count == 0) return a;
  if (a.count == 0) return b;
  Moments joined = a;
  float delta = (b.mean - a.mean) + (b.mean_low - a.mean_low), share = b.count / (a.count + b.count);
  joined.squares += b.squares + delta * delta * a.count * share;
  joined.move_mean(delta * share);
  joined.count += b.count;
  return joined;
}

// y = (x - mean) / sqrt(variance + epsilon) * weight + bias; the variance divides by cols. Not centred (RMS norm):
// y = x / sqrt(mean(x^2) + epsilon) * weight + bias; |x| must stay below 2^63, where squares overflow.
template <typename InType, typename OutType, bool kIsCentred>
struct NormRow {
  using In = InType;
  using Out = OutType;
  static constexpr int kPack = kPackOf<In, Out>;
  const In* x;  // (rows, cols)
  Out* y;       // (rows, cols)
  int64_t cols;
  NormGains gains;
  float epsilon;

  template <typename Team, typename Row>
  THIMBLE_HOST_DEVICE void operator()(const Team& team, Row& row, int64_t r) const {
    if constexpr (kIsCentred) {
      Moments all = team.template join<Moments>(
          [&](int lane) {
            Moments own{0, 0, 0, 0};
            row.for_each_pack(lane, team.lanes(), [&](auto& values, int64_t, int count) {
              if (count > 0) own.add(values, count);
            });
            return own;
          },
          join_moments);
      write(team, row, r, all.squares / all.count, [&](float value) { return all.distance(value); });
    } else {
      float squares = team.template join<float>(
          [&](int lane) {
            float own = 0;
            row.for_each_pack(lane, team.lanes(), [&](auto& values, int64_t, int count) {
              for (int i = 0; i < kPack; ++i)
                if (i < count) own += values[i] * values[i];
            });
            return own;
          },
          [](float a, float b) { return a + b; });
      write(team, row, r, squares / static_cast<float>(cols), [](float value) { return value; });
    }
  }

 private:
  template <typename Team, typename Row, typename Distance>
  THIMBLE_HOST_DEVICE void write(const Team& team, Row& row, int64_t r, float mean_square,
                                 const Distance& distance) const {
    float factor = 1.0f / sqrtf(mean_square + epsilon);
    write_row<In>(team, row, y, cols, r, [&](const auto& values, int64_t first, int count, auto& out) {
      for (int i = 0; i < kPack; ++i) out[i] = distance(values[i]) * factor;
      gains.template apply<kPack>(first, cols, count, out);
    });
  }
};
template <typename In, typename Out>
using RmsNormRow = NormRow<In, Out, false>;
template <typename In, typename Out>
using LayerNormRow = NormRow<In, Out, true>;

}  // namespace thimble
