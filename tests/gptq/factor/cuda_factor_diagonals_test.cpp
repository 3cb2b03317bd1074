// cuda_factor_diagonals_test.cpp: diagonals of factors on a CUDA device against the CPU's.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "gptq/factor/hessian_factor.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_factor_diagonals_test {
namespace {

class CudaFactorDiagonals : public CudaTest {};

TEST_F(CudaFactorDiagonals, AreTheCpus) {
  std::vector<SymmetricMatrix> hessians;
  for (int64_t columns : {1, 63, 64, 65, 200}) hessians.push_back(correlated_hessian(columns, 3));
  for (ColumnOrder order : {ColumnOrder::kDescending, ColumnOrder::kNatural}) {
    std::vector<FactorJob> jobs;
    std::vector<std::shared_ptr<const StoredHessian>> stored;
    for (const SymmetricMatrix& hessian : hessians) {
      stored.push_back(store_in_memory(hessian));
      jobs.push_back({"layer", stored.back().get(), 0.02, order});
    }
    const std::vector<std::vector<double>> found = factor_diagonals_cuda(jobs, 0);
    ASSERT_EQ(found.size(), jobs.size());
    for (size_t j = 0; j < jobs.size(); ++j) {
      const std::vector<double> wanted = factor_diagonal(hessians[j], 0.02, "layer", order);
      ASSERT_EQ(found[j].size(), wanted.size());
      for (size_t k = 0; k < wanted.size(); ++k) EXPECT_NEAR(found[j][k], wanted[k], 1e-9 * wanted[k]) << j << " " << k;
    }
  }
  EXPECT_TRUE(factor_diagonals_cuda({}, 0).empty());
}

TEST_F(CudaFactorDiagonals, AnIndefiniteHessianIsRefused) {
  SymmetricMatrix hessian(2);
  hessian.lower_row(0)[0] = hessian.lower_row(1)[1] = 1;
  hessian.lower_row(1)[0] = 1e9;
  const auto stored = store_in_memory(hessian);
  const FactorJob job{"some.weight", stored.get(), 0.01};
  EXPECT_THAT(bad_input_message([&] {
                factor_diagonals_cuda({&job, 1}, 0);
              }),
              ::testing::HasSubstr("layer 'some.weight': Hessian is not positive definite"));
}

}  // namespace
}  // namespace thimble::cuda_factor_diagonals_test
