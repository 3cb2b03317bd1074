// cuda_backend_stub.cpp: cuda_backend.h in a build without CUDA.
#include "runtime/base/error.h"
#include "runtime/cuda/cuda_backend.h"

namespace thimble {

std::unique_ptr<Backend> make_cuda_backend(const CudaPlace&) {
  throw DeviceError("this build computes on the CPU only");
}

}  // namespace thimble
