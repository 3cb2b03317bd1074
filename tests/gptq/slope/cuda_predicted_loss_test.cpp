// cuda_predicted_loss_test.cpp: predicted losses on a CUDA device against the CPU's.
#include <gtest/gtest.h>

#include "gptq/slope/matrix_loss.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_predicted_loss_test {
namespace {

class CudaPredictedLoss : public CudaTest {
 protected:
  void expect_the_cpus(const MatrixLoss& loss, const StoredMatrixView& weights, const StoredMatrixView& quantized) {
    const double wanted = predicted_loss(loss, weights, quantized);
    const std::optional<double> found = meter_->measure(loss, weights, quantized);
    ASSERT_TRUE(found.has_value());
    EXPECT_NEAR(*found, wanted, 1e-12 * wanted);
    EXPECT_EQ(measure_in(CudaPlace(0), loss, weights, quantized), found);
  }
  static std::optional<double> measure_in(const CudaPlace& place, const MatrixLoss& loss,
                                          const StoredMatrixView& weights, const StoredMatrixView& quantized) {
    return make_cuda_loss_meter(place)->measure(loss, weights, quantized);
  }
  static std::vector<double> row_weights(int64_t rows) {
    std::vector<double> weights;
    for (int64_t r = 0; r < rows; ++r) weights.push_back(0.25 * static_cast<double>(1 + r * 7 % 5));
    return weights;
  }

  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) meter_ = make_cuda_loss_meter(0);
  }

  std::unique_ptr<LossMeter> meter_;
};

TEST_F(CudaPredictedLoss, IsTheCpus) {
  for (const int64_t rows : {1, 64, 131, 8200})  // more than are measured at a time
    for (const int64_t columns : {1, 40, 64, 130}) {
      SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(columns));
      const Matrix weights = random_matrix(rows, columns, 1);
      std::vector<int8_t> codes;
      for (int64_t i = 0; i < rows * columns; ++i) codes.push_back(static_cast<int8_t>(i * 37 % 11 - 5));
      const StoredMatrix quantized(codes, std::vector<float>(static_cast<size_t>(rows), 0.25F),
                                   std::vector<float>(static_cast<size_t>(columns), 0.5F));
      const auto hessian = store_in_memory(correlated_hessian(columns, 3));
      expect_the_cpus({hessian, hessian->diagonal(), row_weights(rows)}, weights, quantized);
      expect_the_cpus({nullptr, hessian->diagonal(), row_weights(rows)}, weights, quantized);
    }
}

TEST_F(CudaPredictedLoss, OfNoRowsIsNone) {
  const Matrix none(0, 4);
  EXPECT_EQ(meter_->measure({store_in_memory(correlated_hessian(4, 1)), {}, {}}, none, none), 0);
}

TEST_F(CudaPredictedLoss, IsTheSameInLittleMemoryAndNothingInNone) {
  const Matrix weights = random_matrix(600, 300, 1), quantized = random_matrix(600, 300, 2);
  const MatrixLoss loss{store_in_memory(correlated_hessian(300, 3)), {}, row_weights(600)};
  EXPECT_EQ(measure_in({0, 4'000'000}, loss, weights, quantized), meter_->measure(loss, weights, quantized));
  EXPECT_FALSE(measure_in({0, 1'000'000}, loss, weights, quantized).has_value());
}

}  // namespace
}  // namespace thimble::cuda_predicted_loss_test
