// no_cuda_gptq_test.cpp: what a build without CUDA answers.
#include <gtest/gtest.h>

#include "gptq/cuda_gptq.h"
#include "runtime/error.h"

namespace thimble {
namespace {

TEST(NoCudaGptq, SaysThatTheBuildHasNoCuda) { EXPECT_THROW(solve_gptq_cuda({}, {}, 0.01, 0), DeviceError); }

}  // namespace
}  // namespace thimble
