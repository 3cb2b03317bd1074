// cuda_loss_statistics_stub.cpp: the answer of a program without CUDA kernels.
#include "gptq/statistics/cuda_loss_statistics.h"
#include "runtime/base/error.h"

namespace thimble {

LossStatistics collect_loss_statistics_cuda(const std::shared_ptr<const Weights>&, const Device&, const TokenSequences&,
                                            Progress&) {
  throw DeviceError("this build collects loss statistics on the CPU only; use --device cpu");
}

}  // namespace thimble
