// cuda_backend_stub.cpp: cuda_backend.h in a build without CUDA.
#include "runtime/cuda_backend.h"
#include "runtime/error.h"

namespace thimble {

std::unique_ptr<Backend> make_cuda_backend(const CudaPlace&) {
  throw DeviceError("this build computes on the CPU only");
}

}  // namespace thimble
