// cuda_shared_models_test.cpp: gradients by matrices from several passes on CUDA devices: the same bits as of one.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "runtime/cuda/cuda_student.cuh"
#include "runtime/device/models.h"
#include "tests/runtime/families/divergence_pair.h"
#include "tests/support/thread_ranks.h"

namespace thimble::cuda_shared_models_test {
namespace {

class CudaSharedPass : public ::testing::TestWithParam<NetworkRecipe> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  }
};
INSTANTIATE_TEST_SUITE_P(Samples, CudaSharedPass, ::testing::ValuesIn(family_recipes()), recipe_name);

// Several passes, on one device or on as many as there are: bit for bit the gradients of one, also after matrices were
// changed where they lie, in the first pass's memory.
void expect_shared_gradients(DivergencePair& pair, const std::vector<int>& ordinals) {
  const Network& network = *pair.teacher->network;
  auto learn = [&](const std::vector<int>& devices) {
    std::vector<std::unique_ptr<DevicePass>> passes;
    for (const int ordinal : devices) {
      DivergenceOptions options{.summed = pair.all_matrices()};
      options.adds = passes.empty() ? adds_of(devices.size(), 1) : DivergenceOptions::Adds::kNothing;
      passes.push_back(pair.on_cuda({ordinal}, options));
    }
    const auto pass = make_shared_divergence_pass(std::move(passes), *pair.teacher, no_other_ranks(),
                                                  {.summed = pair.all_matrices()});
    std::vector<MatrixGradients> found(3);
    pass->set(pair.gains);
    for (MatrixGradients& gradients : found) {
      pass->gradients(0, DivergencePair::kSequences, &gradients);
      for (const MatrixUse& use : network.matrices) {
        const Matrix values = pair.teacher->matrix(network.id_of(use.name)).widened();
        const CudaView to = pass->on_device()->matrix(use.name);
        EXPECT_EQ(cudaMemcpy2D(to.data, static_cast<size_t>(to.stride) * sizeof(float), values.data(),
                               static_cast<size_t>(to.columns) * sizeof(float), to.columns * sizeof(float), to.rows,
                               cudaMemcpyHostToDevice),
                  cudaSuccess);
      }
      pass->set(pair.gains);
    }
    return found;
  };
  const std::vector<MatrixGradients> expected = learn({0}), found = learn(ordinals);
  for (size_t i = 0; i < expected.size(); ++i)
    for (const auto& [name, gradient] : expected[i])
      EXPECT_TRUE(std::ranges::equal(found[i].at(name).values(), gradient.values())) << i << ' ' << name;
}

TEST_P(CudaSharedPass, GradientsOfMatricesAreThoseOfAnyNumberOfPasses) {
  DivergencePair pair(GetParam().make());
  for (const size_t passes : {2, 3}) expect_shared_gradients(pair, std::vector<int>(passes, 0));
}

TEST_P(CudaSharedPass, GradientsOfMatricesAreThoseOfAnyNumberOfDevices) {
  const size_t devices = cuda_device_names().size();
  if (devices < 2) GTEST_SKIP() << "needs two CUDA devices";
  DivergencePair pair(GetParam().make());
  std::vector<int> ordinals(devices);
  std::iota(ordinals.begin(), ordinals.end(), 0);
  expect_shared_gradients(pair, ordinals);
}

// What comes from other ranks, and goes to them, by way of the host.
TEST_P(CudaSharedPass, GradientsOfMatricesAreThoseOfAnyNumberOfRanks) {
  DivergencePair pair(GetParam().make());
  auto learn = [&](Ranks& ranks) {
    DivergenceOptions options{.summed = pair.all_matrices(), .adds = adds_of(1, ranks.size())};
    std::vector<std::unique_ptr<DevicePass>> passes;
    passes.push_back(pair.on_cuda({0}, options));
    const auto pass = make_shared_divergence_pass(std::move(passes), *pair.teacher, ranks, options);
    pass->set(pair.gains);
    MatrixGradients found;
    pass->gradients(0, DivergencePair::kSequences, &found);
    return found;
  };
  const MatrixGradients expected = learn(no_other_ranks());
  for (const int size : {2, 4})
    run_as_ranks(size, [&](Ranks& ranks) {
      const MatrixGradients found = learn(ranks);
      for (const auto& [name, gradient] : expected)
        EXPECT_TRUE(std::ranges::equal(found.at(name).values(), gradient.values())) << size << ' ' << name;
    });
}

}  // namespace
}  // namespace thimble::cuda_shared_models_test
