// nvfp4_matrix.cpp: see nvfp4_matrix.h.
#include "runtime/codes/nvfp4_matrix.h"

#include <algorithm>

#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kRowsPerTask = 16;

// Twice the elements of all rows, (R, K), so that blocks are summed in integers.
std::vector<int8_t> doubled_elements(const Nvfp4Codes& coded, int64_t rows, int64_t columns) {
  std::vector<int8_t> elements(static_cast<size_t>(rows * columns));
  const int64_t row_bytes = nvfp4_row_bytes(columns);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < columns; ++k)
      elements[static_cast<size_t>(r * columns + k)] =
          static_cast<int8_t>(2 * float_from_e2m1(nvfp4_code(coded, row_bytes, r, k)));
  return elements;
}

std::vector<float> scale_values(const Nvfp4Codes& coded) {
  std::vector<float> values(coded.block_scales.size());
  std::ranges::transform(coded.block_scales, values.begin(), float_from_ue4m3);
  return values;
}

}  // namespace

Nvfp4Codes nvfp4_zeros(int64_t rows, int64_t columns) {
  return {std::vector<uint8_t>(static_cast<size_t>(rows * nvfp4_row_bytes(columns))),
          std::vector<uint8_t>(static_cast<size_t>(rows * nvfp4_blocks(columns))), 1};
}

float nvfp4_tensor_scale(ConstMatrixView values) {
  float amax = 0;
  for (int64_t r = 0; r < values.rows; ++r) amax = nvfp4_amax(amax, nvfp4_amax(values.row(r), values.cols));
  return nvfp4_tensor_scale(amax);
}

Nvfp4Codes stage_nvfp4(ConstMatrixView values) {
  Nvfp4Codes staged = nvfp4_zeros(values.rows, values.cols);
  staged.tensor_scale = nvfp4_tensor_scale(values);
  const int64_t row_bytes = nvfp4_row_bytes(values.cols), blocks = nvfp4_blocks(values.cols);
  parallel_chunks(values.rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      for (int64_t b = 0; b < blocks; ++b) {
        const int64_t begin = b * kNvfp4Block, count = std::min<int64_t>(kNvfp4Block, values.cols - begin);
        const float* x = values.row(r) + begin;
        const uint8_t scale = nvfp4_block_scale(nvfp4_amax(x, count), staged.tensor_scale);
        staged.block_scales[static_cast<size_t>(r * blocks + b)] = scale;
        const float step = float_from_ue4m3(scale) * staged.tensor_scale;
        for (int64_t k = 0; k < count; ++k) set_nvfp4_code(staged, row_bytes, r, begin + k, nvfp4_element(x[k], step));
      }
    }
  });
  return staged;
}

Matrix dequantize_nvfp4(const Nvfp4Codes& coded, int64_t rows, int64_t columns) {
  Matrix values(rows, columns);
  const int64_t row_bytes = nvfp4_row_bytes(columns), blocks = nvfp4_blocks(columns);
  const std::vector<float> scales = scale_values(coded);
  parallel_chunks(rows, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r)
      for (int64_t k = 0; k < columns; ++k)
        values(r, k) = float_from_e2m1(nvfp4_code(coded, row_bytes, r, k)) *
                       scales[static_cast<size_t>(r * blocks + k / kNvfp4Block)] * coded.tensor_scale;
  });
  return values;
}

Matrix multiply_nvfp4(const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k) {
  const int64_t blocks = nvfp4_blocks(k);
  const std::vector<int8_t> a_halves = doubled_elements(a, m, k), b_halves = doubled_elements(b, n, k);
  const std::vector<float> a_scales = scale_values(a), b_scales = scale_values(b);
  // Both operands were doubled. In float64, where a product of two tensor scales cannot overflow or vanish.
  const double alpha = 0.25 * double{a.tensor_scale} * double{b.tensor_scale};
  Matrix c(m, n);
  parallel_chunks(m, kRowsPerTask, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const int8_t *x = a_halves.data() + i * k, *w = b_halves.data() + j * k;
        float sum = 0;
        for (int64_t block = 0; block < blocks; ++block) {
          int products = 0;
          for (int64_t e = block * kNvfp4Block; e < std::min<int64_t>((block + 1) * kNvfp4Block, k); ++e)
            products += x[e] * w[e];
          sum += static_cast<float>(products) * (a_scales[static_cast<size_t>(i * blocks + block)] *
                                                 b_scales[static_cast<size_t>(j * blocks + block)]);
        }
        c(i, j) = static_cast<float>(alpha * double{sum});
      }
  });
  return c;
}

}  // namespace thimble
