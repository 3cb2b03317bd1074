// cuda_gptq_stub.cpp: the answers of a build without CUDA to all that this folder asks of devices.
#include "gptq/factor/hessian_factor.h"
#include "gptq/factor/input_pairs.h"
#include "gptq/slope/code_learner.h"
#include "gptq/slope/matrix_loss.h"
#include "gptq/slope/slope_solver.h"
#include "gptq/statistics/statistics_sum.h"
#include "gptq/trace/gptq_solver.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

[[noreturn]] void refuse(const char* instead) {
  throw DeviceError(std::string("this build has no CUDA: ") + instead + " on the CPU; use --device cpu");
}

}  // namespace

HessianSet collect_hessians_cuda(const std::shared_ptr<const Weights>&, const Device&, const TokenSequences&,
                                 std::span<const LinearInput>, Progress&) {
  refuse("Hessians are collected");
}

LossStatistics collect_loss_statistics_cuda(const std::shared_ptr<const Weights>&, const Device&, const TokenSequences&,
                                            Progress&) {
  refuse("loss statistics are collected");
}

MemoryPlan plan_hessians(const std::shared_ptr<const Network>&, Numerics, int64_t, std::span<const LinearInput>,
                         int64_t, int64_t, uint64_t) {
  refuse("Hessians are collected");
}

std::unique_ptr<LossMeter> make_cuda_loss_meter(const CudaPlace&) { refuse("losses are predicted"); }

MemoryPlan plan_gradients(const std::shared_ptr<const Network>&, Numerics, int64_t, int64_t, uint64_t) {
  refuse("loss statistics are collected");
}

MemoryPlan plan_input_pairs(const std::shared_ptr<const Network>&, Numerics, int64_t, std::span<const Share>, int64_t,
                            bool, uint64_t) {
  refuse("inputs of two models are read");
}

std::unique_ptr<PairReader> make_cuda_pair_reader(const Weights&, const Weights&, const CudaPlace&, Numerics,
                                                  const TokenSequences&, std::span<const Share>) {
  refuse("inputs of two models are read");
}

std::vector<std::vector<double>> factor_diagonals_cuda(std::span<const FactorJob>, const CudaPlace&) {
  refuse("Hessians are factored");
}

std::vector<Matrix> shift_weights_cuda(std::span<const StoredMatrixView>, const StoredPair&, double, double,
                                       const std::string&, const CudaPlace&) {
  refuse("weights are shifted");
}

void solve_gptq_cuda(std::span<const GptqJob>, double, const CudaPlace&, const OnGptqSolved<RowScaledCodes>&) {
  refuse("layers are solved");
}

void solve_gptq_nvfp4_cuda(std::span<const GptqJob>, double, const CudaPlace&, const OnGptqSolved<Nvfp4Codes>&) {
  refuse("layers are solved");
}

std::unique_ptr<LatentMover> make_cuda_latent_mover(CodeLearner&, const QuantizedModel&, CudaStudent&) {
  refuse("latents are moved");
}

void solve_slope_cuda(std::span<const SlopeJob>, const ChooseGrid&, const CudaPlace&, const OnSlopeSolved&) {
  refuse("layers are solved");
}

}  // namespace thimble
