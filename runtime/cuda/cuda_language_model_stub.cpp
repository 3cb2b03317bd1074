// cuda_language_model_stub.cpp: the answer of a program without CUDA kernels.
#include "runtime/base/error.h"
#include "runtime/cuda/cuda_language_model.h"

namespace thimble {
namespace {

[[noreturn]] void refuse() { throw DeviceError("this build computes on the CPU only; use --device cpu"); }

}  // namespace

std::unique_ptr<LanguageModel> make_cuda_language_model(const Model&, const CudaPlace&, Numerics, int64_t) { refuse(); }

std::unique_ptr<LanguageModel> make_cuda_language_model(const StoredModel&, const BlockFeed&, const CudaPlace&,
                                                        Numerics, int64_t) {
  refuse();
}

std::string cuda_arithmetic(int) { refuse(); }

}  // namespace thimble
