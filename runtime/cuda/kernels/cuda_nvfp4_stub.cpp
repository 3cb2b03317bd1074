// cuda_nvfp4_stub.cpp: the answers of a build without CUDA.
#include "runtime/base/error.h"
#include "runtime/cuda/kernels/cuda_nvfp4.h"

namespace thimble {
namespace {

constexpr const char* kNoCuda = "this build computes on the CPU only";

}  // namespace

Matrix multiply_nvfp4_on_cuda(int, const Nvfp4Codes&, int64_t, const Nvfp4Codes&, int64_t, int64_t) {
  throw DeviceError(kNoCuda);
}
Matrix multiply_bf16_nvfp4_on_cuda(int, std::span<const uint16_t>, int64_t, const Nvfp4Codes&, int64_t, int64_t) {
  throw DeviceError(kNoCuda);
}
Matrix multiply_nvfp4_natively(int, const Nvfp4Codes&, int64_t, const Nvfp4Codes&, int64_t, int64_t) {
  throw DeviceError(kNoCuda);
}
std::string why_not_native_nvfp4(int) { return kNoCuda; }

}  // namespace thimble
