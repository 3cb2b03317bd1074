// cuda_input_shift_test.cpp: weights that are shifted on a CUDA device against the CPU's.
#include <gtest/gtest.h>

#include <algorithm>

#include "gptq/factor/input_pairs.h"
#include "tests/gptq/factor/joint_hessian.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_input_shift_test {
namespace {

class CudaInputShift : public CudaTest {};

TEST_F(CudaInputShift, IsTheCpus) {
  // Below a tile, a whole tile, beyond; rows of their own each.
  for (const int64_t columns : {1, 12, 64, 65, 200}) {
    SCOPED_TRACE(columns);
    const StoredPair pair = store_in_memory(split_joint_hessian(correlated_hessian(2 * columns, 7)));
    const std::vector<Matrix> weights = {random_matrix(5, columns, 8), random_matrix(64, columns, 9),
                                         random_matrix(130, columns, 10), Matrix(0, columns)};
    const std::vector<StoredMatrixView> views(weights.begin(), weights.end());
    const std::vector<Matrix> cuda = shift_weights_cuda(views, pair, 0.5, 0.75, "layer", {0});
    const std::vector<Matrix> on_cpu = shift_weights(views, pair, 0.5, 0.75, "layer", Device{});
    ASSERT_EQ(cuda.size(), weights.size());
    double largest = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const Matrix& cpu = on_cpu[i];
      ASSERT_EQ(cuda[i].rows(), cpu.rows());
      ASSERT_EQ(cuda[i].cols(), cpu.cols());
      for (int64_t r = 0; r < cpu.rows(); ++r)
        for (int64_t k = 0; k < columns; ++k) {
          ASSERT_NEAR(cuda[i](r, k), cpu(r, k), 1e-6 * (1 + std::abs(cpu(r, k)))) << i << " " << r << " " << k;
          largest = std::max(largest, std::abs(double{cpu(r, k)} - weights[i](r, k)));
        }
    }
    EXPECT_GT(largest, 1e-3);  // there is something to see
    const std::vector<Matrix> again = shift_weights_cuda(views, pair, 0.5, 0.75, "layer", {0});
    for (size_t i = 0; i < weights.size(); ++i) EXPECT_TRUE(std::ranges::equal(again[i].values(), cuda[i].values()));
  }
}

TEST_F(CudaInputShift, LeavesDeadColumnsAlone) {
  constexpr int64_t kColumns = 70, kDead = 3;
  SymmetricMatrix joint = correlated_hessian(2 * kColumns, 7);
  for (int64_t i = 0; i < 2 * kColumns; ++i) joint.lower_row(std::max(i, kDead))[std::min(i, kDead)] = 0;
  const StoredPair pair = store_in_memory(split_joint_hessian(joint));
  const Matrix weights = random_matrix(9, kColumns, 8);
  const std::vector<StoredMatrixView> views = {weights};
  const Matrix cuda = shift_weights_cuda(views, pair, 0.1, 1, "layer", {0}).front(),
               cpu = shift_weights(views, pair, 0.1, 1, "layer", Device{}).front();
  for (int64_t r = 0; r < weights.rows(); ++r) {
    EXPECT_EQ(cuda(r, kDead), weights(r, kDead));
    for (int64_t k = 0; k < kColumns; ++k) EXPECT_NEAR(cuda(r, k), cpu(r, k), 1e-6 * (1 + std::abs(cpu(r, k))));
  }
}

TEST_F(CudaInputShift, RefusesWhatIsNotAHessian) {
  InputPair refused = split_joint_hessian(correlated_hessian(24, 7));
  refused.hessian.lower_row(3)[3] = -1;
  const StoredPair pair = store_in_memory(std::move(refused));
  const Matrix weights = random_matrix(9, 12, 8);
  const std::vector<StoredMatrixView> views = {weights};
  expect_error<Error>([&] { shift_weights_cuda(views, pair, 0.1, 1, "blocks.0.mlp.fc.weight", {0}); },
                      {"blocks.0.mlp.fc.weight", "diagonal"});
}

}  // namespace
}  // namespace thimble::cuda_input_shift_test
