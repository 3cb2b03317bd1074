// cuda_divergence_pass_test.cpp: divergences and their gradients on the device against the CPU's.
#include "runtime/cuda/cuda_divergence_pass.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "runtime/cuda/kernels/cuda_devices.h"
#include "tests/runtime/cpu/divergence_samples.h"

namespace thimble {
namespace {

class CudaDivergenceOfCases : public testing::TestWithParam<GolfCase> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  }
};
INSTANTIATE_TEST_SUITE_P(Options, CudaDivergenceOfCases, testing::ValuesIn(kGolfCases),
                         [](const auto& test) { return test.param.name; });

void expect_near(const NamedGradients& found, const NamedGradients& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(found.at(name).size(), values.size()) << name;
    double largest = 1;
    for (double value : values) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(found.at(name)[i], values[i], 1e-4 * largest) << name;
  }
}

TEST_P(CudaDivergenceOfCases, IsTheCpus) {
  DivergenceSample sample(GetParam());
  std::unique_ptr<DivergencePass> cpu = sample.pass(), cuda = sample.pass({true, {0}});
  for (float head : {1.0f, 1.2f}) {
    sample.gains.head = head;
    cpu->set(sample.gains);
    cuda->set(sample.gains);
    const GainGradients expected = cpu->gradients(1, 2), found = cuda->gradients(1, 2);
    EXPECT_NEAR(found.divergence, expected.divergence, 1e-4 * expected.divergence + 1e-4);
    EXPECT_EQ(cuda->divergence(1, 2), found.divergence) << "the same forward pass";
    EXPECT_NEAR(found.head, expected.head, 1e-3 * std::max(1.0, std::abs(expected.head)));
    expect_near(found.rows, expected.rows);
    expect_near(found.small, expected.small);
    EXPECT_EQ(cuda->gradients(1, 2).rows, found.rows);
  }
}

TEST(CudaDivergencePass, LeavesTheCallersDeviceAsItWas) {
  if (cuda_device_names().size() < 2) GTEST_SKIP() << "needs two CUDA devices";
  auto current = [] {
    int ordinal = -1;
    EXPECT_EQ(cudaGetDevice(&ordinal), cudaSuccess);
    return ordinal;
  };
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  DivergenceSample sample(kGolfCases[0]);
  std::unique_ptr<DivergencePass> second = sample.pass({true, {1}}), first = sample.pass({true, {0}});
  EXPECT_EQ(current(), 0);
  for (DivergencePass* pass : {second.get(), first.get()}) pass->set(sample.gains);
  EXPECT_EQ(second->divergence(0, 2), first->divergence(0, 2));
  EXPECT_EQ(current(), 0);
  second.reset();
  EXPECT_EQ(current(), 0);
}

}  // namespace
}  // namespace thimble
