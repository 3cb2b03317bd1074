// no_cuda_gptq_test.cpp: what a build without CUDA answers.
#include <gtest/gtest.h>

#include "gptq/factor/input_pairs.h"
#include "gptq/slope/slope_solver.h"
#include "gptq/statistics/statistics_sum.h"
#include "gptq/trace/gptq_solver.h"
#include "runtime/base/error.h"

namespace thimble::no_cuda_gptq_test {
namespace {

TEST(NoCudaGptq, SaysThatTheBuildHasNoCuda) {
  EXPECT_THROW(solve_gptq_cuda({}, 0.01, 0, {}), DeviceError);
  EXPECT_THROW(solve_gptq_nvfp4_cuda({}, 0.01, 0, {}), DeviceError);
}

TEST(NoCudaGptq, NorHasItASolverForSlope) { EXPECT_THROW(solve_slope_cuda({}, {}, 0, {}), DeviceError); }

TEST(NoCudaGptq, NorDoesItReadInputsOfTwoModelsThere) {
  EXPECT_THROW(make_cuda_pair_reader({}, {}, 0, Numerics::kFp32, {}, {}), DeviceError);
  EXPECT_THROW(shift_weights_cuda({}, {}, 0, 1, "layer", 0), DeviceError);
}

TEST(NoCudaGptq, NorHasItLossStatisticsOfADevice) {
  SilentProgress progress;
  EXPECT_THROW(collect_loss_statistics_cuda({}, {}, {}, progress), DeviceError);
  EXPECT_THROW(collect_hessians_cuda({}, {}, {}, {}, progress), DeviceError);
}

}  // namespace
}  // namespace thimble::no_cuda_gptq_test
