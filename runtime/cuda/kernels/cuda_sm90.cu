// cuda_sm90.cu: the host's part of cuda_sm90.cuh.
#include "runtime/cuda/kernels/cuda_sm90.cuh"

#include <map>
#include <span>

#include "runtime/base/error.h"

namespace thimble {
namespace {

// There is machine code for sm_90a in this build when this kernel has it; PTX of an older target would be empty.
__global__ void sm90_probe_kernel() {}

bool finds_sm90_kernels() {
  if (compute_capability() != 90) return false;
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, sm90_probe_kernel));
  return attributes.binaryVersion == 90 && attributes.ptxVersion >= 90;
}

}  // namespace

bool has_sm90_kernels() {
  thread_local std::map<int, bool> found;  // by device: asked before each product
  int device = 0;
  check_cuda(cudaGetDevice(&device));
  const auto [at, is_new] = found.try_emplace(device);
  if (is_new) at->second = finds_sm90_kernels();
  return at->second;
}

namespace {

// Sizes of the dimensions, the innermost first, and bytes between elements of all but that one.
CUtensorMap make_tensor_map(const void* data, std::span<const cuuint64_t> sizes, std::span<const cuuint64_t> strides,
                            int box_rows) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const auto encode = [] {  // from the driver, so that nothing links against it
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
    if (found != cudaDriverEntryPointSuccess) throw DeviceError("CUDA: the driver has no tensor maps");
    return reinterpret_cast<Encode>(function);
  }();
  CUtensorMap map{};
  const cuuint32_t box[] = {64, static_cast<cuuint32_t>(box_rows), 1}, steps[] = {1, 1, 1};
  CUresult made =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(data),
             sizes.data(), strides.data(), box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (made != CUDA_SUCCESS)
    throw DeviceError("CUDA: no tensor map for " + std::to_string(sizes[1]) + " x " + std::to_string(sizes[0]) +
                      " elements with a stride of " + std::to_string(strides[0] / 2));
  return map;
}

}  // namespace

CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2};
  return make_tensor_map(data, sizes, strides, box_rows);
}

CUtensorMap make_tensor_map(const void* data, int64_t rows, int64_t columns, int64_t stride, int box_rows,
                            int64_t count, int64_t step) {
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows),
                              static_cast<cuuint64_t>(count)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(stride) * 2, static_cast<cuuint64_t>(step) * 2};
  return make_tensor_map(data, sizes, strides, box_rows);
}

}  // namespace thimble
