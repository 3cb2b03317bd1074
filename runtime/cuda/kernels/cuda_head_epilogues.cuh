// cuda_head_epilogues.cuh: what becomes of the output head's product: logits, or losses without logits in memory. See
// cuda_epilogues.cuh for what an epilogue is.
#pragma once

#include "runtime/cuda/kernels/cuda_epilogues.cuh"
#include "runtime/cuda/kernels/cuda_tile_product_sm90.cuh"
#include "runtime/tensor/rounding.h"

namespace thimble {

// A cap of 0 is none.
__device__ inline float soft_capped(float logit, float cap) { return cap == 0 ? logit : cap * tanhf(logit / cap); }

// From the head's product to the logits, in fp32.
template <bool kRounds>
struct LogitRule {
  RowNorm norm;
  float cap;

  __device__ float operator()(float product, float row_norm) const { return soft_capped(product * row_norm, cap); }
};
// As numeric modes have it (numeric_policy.h); rows are normed before the product.
template <>
struct LogitRule<true> {
  RowNorm norm;
  float cap;
  Rounding product_rounding, capped_rounding;
  float scale = 1;

  __device__ float operator()(float product, float) const {
    float logit = product_rounding(product) * scale;
    return cap == 0 ? logit : capped_rounding(soft_capped(logit, cap));
  }
};

// Logits in fp32.
template <bool kRounds>
struct LogitsEpilogue {
  using Columns = Nothing;
  using Row = float;  // the norm
  using Fetched = Nothing;
  LogitRule<kRounds> rule;
  float* out;  // (rows, stride)
  int64_t stride;

  __device__ Columns columns(int, bool) const { return {}; }
  __device__ Row row(int64_t row) const { return rule.norm(row); }
  __device__ Fetched fetch(const RowPlace&, const Columns&, const Row&) const { return {}; }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns&, const Row& scale, const Fetched&) const {
#pragma unroll
    for (float& value : v) value = rule(value, scale);
    if (place.exists) Stored8<float>::rounded(v).store(out + place.row * stride + place.column);
  }
};

// Cross-entropy without logits in memory: per row and column tile the largest logit and the sum of exponentials above
// it, and the target's own logit. launch_finish_loss() puts the tiles together.
template <bool kRounds>
struct LossEpilogue {
  using Columns = Nothing;
  using Row = float;  // the norm
  using Fetched = Nothing;
  LogitRule<kRounds> rule;
  const int32_t* targets;  // (rows), or null
  int vocabulary;          // columns beyond it are padding
  float2* parts;           // (tiles, rows): maximum, sum of exp(logit - maximum)
  float* target_logits;    // (rows)
  int64_t rows;

  __device__ Columns columns(int, bool) const { return {}; }
  __device__ Row row(int64_t row) const { return rule.norm(row); }
  __device__ Fetched fetch(const RowPlace&, const Columns&, const Row&) const { return {}; }
  template <int kLanes>
  __device__ void apply(float (&v)[8], const RowPlace& place, const Columns&, const Row& scale, const Fetched&) const {
    int target = place.exists && targets ? targets[place.row] : -1;
    float peak = -INFINITY;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float logit = rule(v[i], scale);
      v[i] = place.exists && place.column + i < vocabulary ? logit : -INFINITY;
      if (place.column + i == target) target_logits[place.row] = logit;
      peak = fmaxf(peak, v[i]);
    }
    peak = max_over_lanes<kLanes>(peak);
    float sum = 0;
#pragma unroll
    for (float logit : v) sum += expf(logit - peak);
    sum = sum_over_lanes<kLanes>(sum);
    if (place.row < rows && threadIdx.x % kLanes == 0) parts[place.tile * rows + place.row] = {peak, sum};
  }
  // A sink of cuda_tile_product_sm90.cuh.
  __device__ void operator()(FragmentValues<128>& sums, const ProductTile& at) const {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t row = at.row + 8 * half, known = min(row, rows - 1);
      const float scale = rule.norm(known);
      const int target = targets ? targets[known] : -1;
      float peak = -INFINITY;
#pragma unroll
      for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int column = at.first_column + 8 * j + lane % 4 * 2 + i;
          float& value = sums[j][2 * half + i];
          const float logit = rule(value, scale);
          if (column == target && row < rows) target_logits[row] = logit;
          value = column < vocabulary ? logit : -INFINITY;
          peak = fmaxf(peak, value);
        }
      peak = max_over_lanes<4>(peak);
      float sum = 0;
#pragma unroll
      for (int j = 0; j < 16; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) sum += expf(sums[j][2 * half + i] - peak);
      sum = sum_over_lanes<4>(sum);
      if (row < rows && lane % 4 == 0) parts[at.column_tile * rows + row] = {peak, sum};
    }
  }
};

}  // namespace thimble
