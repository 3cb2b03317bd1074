// cpu_rows.h: row operations on whole matrices that passes share, in parallel over chunks of rows.
#pragma once

#include "runtime/cpu/cpu_kernels.h"
#include "runtime/ops/token_batch.h"
#include "runtime/ops/weights.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/rounding.h"

namespace thimble {

// Angles of a rotary embedding at one context length: (T, dims / 2) cosines and sines.
struct RotaryTable {
  Matrix cosine, sine;
};
RotaryTable make_rotary_table(const RotaryRule& rule, int64_t context_length);

void copy_rows(ConstMatrixView from, MatrixView to);
// y = factor * gain * x / sqrt(mean(x^2) + epsilon) by rows; a null gain is 1. y may be x.
void rms_norm_rows(ConstMatrixView x, const float* gain, float factor, float epsilon, MatrixView y);
// In place.
void activate_rows(Activation activation, MatrixView x);
void round_rows(const Rounding& rounding, MatrixView x);
// The values of x in NVFP4, with a tensor scale per row (nvfp4.h), then rounded.
void stage_rows_nvfp4(ConstMatrixView x, const Rounding& rounding, MatrixView staged);
RowRounding row_rounding(const Rounding& rounding);

// op::Heads on rows of one position each, head by head.
struct HeadRows {
  const op::Heads& heads;
  const Weights& weights;
  const RotaryTable* rotary;  // null: none

  float head_gain(int64_t head) const {
    return heads.head_gain == kAbsent ? 1.0f : weights.vector(heads.head_gain)[static_cast<size_t>(head)];
  }
  const float* norm_gain() const {
    return heads.norm_gain == kAbsent ? nullptr : weights.vector(heads.norm_gain).data();
  }
  // One head in place, at a position; `turn` as in CpuKernels.
  void rotate(float* head, int64_t position, float turn) const;
  // In place.
  void run(MatrixView x, const BatchShape& batch) const;
};

}  // namespace thimble
