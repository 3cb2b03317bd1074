// cuda_nvfp4_linear.cu: see cuda_nvfp4_linear.cuh.
#include "runtime/cuda/kernels/cuda_nvfp4_linear.cuh"

#include <cassert>

#include "runtime/codes/nvfp4.h"
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
  int64_t columns, stride;

  __device__ void operator()(int64_t row, int lane) const {
    const float* from = x + row * stride;
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

}  // namespace

CudaNvfp4Linear::CudaNvfp4Linear(int64_t code_bytes, int64_t scale_bytes, int64_t rows)
    : codes_(code_bytes), scales_(scale_bytes), row_scales_(rows) {
  int ordinal = 0;
  check_cuda(cudaGetDevice(&ordinal));
  if (why_not_native_nvfp4(ordinal).empty()) native_ = std::make_unique<NativeNvfp4Product>();
}

void CudaNvfp4Linear::multiply(const float* x, int64_t stride, int64_t rows, int64_t columns, const DeviceNvfp4& w,
                               int64_t width, float weight_scale, float* y, cudaStream_t stream) {
  if (rows == 0 || width == 0) return;
  const int64_t scale_bytes = scale_layout_bytes(rows, nvfp4_blocks(columns));
  assert(scale_bytes <= scales_.count() && rows * nvfp4_row_bytes(columns) <= codes_.count());
  // What pads the layout must be 0.
  check_cuda(cudaMemsetAsync(scales_.data(), 0, static_cast<size_t>(scale_bytes), stream));
  launch_rows(rows, StageRow{x, codes_.data(), scales_.data(), row_scales_.data(), columns, stride}, stream);
  const DeviceNvfp4 staged{codes_.data(), scales_.data()};
  if (!native_ || !native_->multiply(staged, w, y, rows, width, columns, weight_scale, stream))
    multiply_nvfp4(staged, w, y, rows, width, columns, weight_scale, stream);
}

}  // namespace thimble
