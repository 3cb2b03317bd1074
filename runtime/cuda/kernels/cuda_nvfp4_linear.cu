// cuda_nvfp4_linear.cu: see cuda_nvfp4_linear.cuh.
#include "runtime/cuda/kernels/cuda_nvfp4_linear.cuh"

#include "runtime/codes/nvfp4_block.h"
#include "runtime/codes/nvfp4_scale_layout.h"
#include "runtime/cuda/kernels/cuda_nvfp4.h"
#include "runtime/cuda/kernels/cuda_row_kernel.cuh"

namespace thimble {
namespace {

// A warp stages a row, a lane every 32nd block of it.
struct StageRow {
  const float* x;
  uint8_t *codes, *scales;
  float* row_scales;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    const float* from = x + row * columns;
    float amax = 0;
    for (int64_t c = lane; c < columns; c += 32) amax = nvfp4_amax(amax, from[c]);
    for (int step = 16; step > 0; step /= 2) amax = nvfp4_amax(amax, __shfl_xor_sync(~0u, amax, step));
    const float tensor_scale = nvfp4_tensor_scale(amax);
    if (lane == 0) row_scales[row] = tensor_scale;
    const int64_t blocks = nvfp4_blocks(columns);
    for (int64_t block = lane; block < blocks; block += 32) {
      const int64_t begin = block * kNvfp4Block, count = min(int64_t{kNvfp4Block}, columns - begin);
      const uint8_t scale = nvfp4_block_scale(nvfp4_amax(from + begin, count), tensor_scale);
      scales[scale_layout_index(row, block, blocks)] = scale;
      const float step = float_from_ue4m3(scale) * tensor_scale;
      uint8_t* to = codes + row * nvfp4_row_bytes(columns) + begin / 2;
      for (int64_t k = 0; k < count; k += 2) {
        const uint8_t low = nvfp4_element(from[begin + k], step);
        const uint8_t high = k + 1 < count ? nvfp4_element(from[begin + k + 1], step) : 0;
        to[k / 2] = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
};

struct ScaleRow {
  const float* factors;
  float* y;
  int64_t columns;

  __device__ void operator()(int64_t row, int lane) const {
    for (int64_t c = lane; c < columns; c += 32) y[row * columns + c] *= factors[row];
  }
};

size_t added(size_t needed, size_t held) { return needed > held ? needed - held : 0; }

}  // namespace

CudaNvfp4Linear::CudaNvfp4Linear(int ordinal) {
  if (why_not_native_nvfp4(ordinal).empty()) native_ = std::make_unique<NativeNvfp4Product>();
}

size_t CudaNvfp4Linear::growth(int64_t rows, const Nvfp4Weight& w) const {
  const int64_t columns = w.values.cols;
  return (weights_.contains({w.values.data, w.values.rows}) ? 0 : DeviceNvfp4Matrix::bytes(w.values.rows, columns)) +
         added(static_cast<size_t>(rows * nvfp4_row_bytes(columns)), codes_.bytes()) +
         added(static_cast<size_t>(scale_layout_bytes(rows, nvfp4_blocks(columns))), scales_.bytes()) +
         added(static_cast<size_t>(rows) * sizeof(float), row_scales_.bytes());
}

void CudaNvfp4Linear::multiply(const float* x, int64_t rows, const Nvfp4Weight& w, float* y, cudaStream_t stream) {
  const int64_t width = w.values.rows, columns = w.values.cols;
  if (rows == 0 || width == 0) return;
  const DeviceNvfp4 weights =
      weights_.try_emplace({w.values.data, width}, *w.codes, w.first_row, width, columns).first->second.view();
  const int64_t scale_bytes = scale_layout_bytes(rows, nvfp4_blocks(columns));
  codes_.reserve(rows * nvfp4_row_bytes(columns));
  scales_.reserve(scale_bytes);
  row_scales_.reserve(rows);
  // What pads the layout must be 0.
  check_cuda(cudaMemsetAsync(scales_.data(), 0, static_cast<size_t>(scale_bytes), stream));
  launch_rows(rows, StageRow{x, codes_.data(), scales_.data(), row_scales_.data(), columns}, stream);
  const DeviceNvfp4 staged{codes_.data(), scales_.data()};
  const float scale = w.codes->tensor_scale;
  if (!native_ || !native_->multiply(staged, weights, y, rows, width, columns, scale, stream))
    multiply_nvfp4(staged, weights, y, rows, width, columns, scale, stream);
  launch_rows(rows, ScaleRow{row_scales_.data(), y, width}, stream);
}

}  // namespace thimble
