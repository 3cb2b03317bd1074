// cpu_rows.cpp: see cpu_rows.h.
#include "runtime/cpu/cpu_rows.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/codes/nvfp4.h"
#include "runtime/cpu/cpu_kernels.h"

namespace thimble {
namespace {

// The choice of formats is made once per row.
template <Format kValue>
void round_values(Format storage, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = rounded_to(kValue, x[i]);
  if (storage == Format::kBf16) return cpu_kernels().round_to_bf16(x, n);
  if (storage == Format::kFp32) return;
  for (int64_t i = 0; i < n; ++i) x[i] = rounded_to(storage, x[i]);
}

void round_row(const Rounding& r, float* x, int64_t n) {
  switch (r.value) {
    case Format::kFp32: return round_values<Format::kFp32>(r.storage, x, n);
    case Format::kBf16: return round_values<Format::kBf16>(r.storage, x, n);
    case Format::kFp16: return round_values<Format::kFp16>(r.storage, x, n);
    case Format::kQ115: return round_values<Format::kQ115>(r.storage, x, n);
    case Format::kQ131Q115: return round_values<Format::kQ131Q115>(r.storage, x, n);
  }
}

}  // namespace

RotaryTable make_rotary_table(const RotaryRule& rule, int64_t context_length) {
  const std::vector<double> frequencies = rule.frequencies(context_length);
  const auto half = static_cast<int64_t>(frequencies.size());
  RotaryTable table{Matrix(context_length, half), Matrix(context_length, half)};
  for (int64_t p = 0; p < context_length; ++p)
    for (int64_t k = 0; k < half; ++k) {
      const double angle = static_cast<double>(p) * frequencies[static_cast<size_t>(k)];
      table.cosine(p, k) = static_cast<float>(std::cos(angle));
      table.sine(p, k) = static_cast<float>(std::sin(angle));
    }
  return table;
}

void copy_rows(ConstMatrixView from, MatrixView to) {
  for_each_row(to.rows, to.cols, [&](int64_t p) { std::copy_n(from.row(p), to.cols, to.row(p)); });
}

void rms_norm_rows(ConstMatrixView x, const float* gain, float factor, float epsilon, MatrixView y) {
  const CpuKernels& kernels = cpu_kernels();
  for_each_row(x.rows, x.cols, [&](int64_t p) { kernels.rms_norm(x.row(p), gain, factor, epsilon, y.row(p), x.cols); });
}

void activate_rows(Activation activation, MatrixView x) {
  const CpuKernels& kernels = cpu_kernels();
  for_each_row(x.rows, x.cols, [&](int64_t p) { kernels.activate(activation, x.row(p), x.cols); });
}

void round_rows(const Rounding& rounding, MatrixView x) {
  if (rounding.is_exact()) return;
  for_each_row(x.rows, x.cols, [&](int64_t p) { round_row(rounding, x.row(p), x.cols); });
}

void stage_rows_nvfp4(ConstMatrixView x, const Rounding& rounding, MatrixView staged) {
  for_each_row(x.rows, x.cols, [&](int64_t p) {
    nvfp4_values(x.row(p), x.cols, nvfp4_tensor_scale(nvfp4_amax(x.row(p), x.cols)), staged.row(p));
    round_row(rounding, staged.row(p), x.cols);
  });
}

RowRounding row_rounding(const Rounding& rounding) {
  return rounding.is_exact() ? RowRounding{} : RowRounding{&rounding, round_row};
}

void HeadRows::rotate(float* head, int64_t position, float turn) const {
  if (rotary)
    cpu_kernels().rotate(head, rotary->cosine.row(position), rotary->sine.row(position), rotary->cosine.cols(), turn);
}

void HeadRows::run(MatrixView x, const BatchShape& batch) const {
  const CpuKernels& kernels = cpu_kernels();
  const int64_t d = heads.head_dim, count = x.cols / d;
  for_each_row(x.rows, x.cols, [&](int64_t p) {
    const int64_t position = batch.position_of(p);
    for (int64_t h = 0; h < count; ++h) {
      float* head = x.row(p) + h * d;
      const float gain = head_gain(h);
      if (heads.epsilon > 0) {
        kernels.rms_norm(head, norm_gain(), gain, heads.epsilon, head, d);
      } else if (gain != 1) {
        for (int64_t c = 0; c < d; ++c) head[c] *= gain;
      }
      rotate(head, position, 1);
    }
  });
}

}  // namespace thimble
