// cuda_slope_test.cpp: the CUDA solver of the method `slope` against the CPU's.
#include "gptq/slope/slope_solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "runtime/base/error.h"
#include "runtime/codes/trellis.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_slope_test {
namespace {

class CudaSlope : public CudaTest {};

// Steps that differ by row, and by column as the factor says.
SlopeGrid grid_of(int64_t rows, const std::vector<double>& upper_diagonal, int trellis_bits, double rate_weight) {
  SlopeGrid grid{trellis_bits, rate_weight, {}, {}};
  for (int64_t r = 0; r < rows; ++r) grid.row_steps.push_back(static_cast<int16_t>(-64 + r * 29 % 61));
  for (double u : upper_diagonal) grid.column_steps.push_back(static_cast<int16_t>(std::lround(64 * std::log2(u))));
  return grid;
}

struct Case {
  int64_t rows, columns;
  int trellis_bits;
  double rate_weight;
};

class CudaSlopeShapes : public CudaTest, public ::testing::WithParamInterface<Case> {};

SlopeResult solve_on_cpu(const SlopeJob& job, int trellis_bits, double rate_weight) {
  const HessianFactor factor =
      factor_hessian(*job.factor.hessian->load(), job.factor.damping, job.factor.name, job.factor.order);
  const SlopeGrid grid = grid_of(job.weights.rows, factor.upper_diagonal(), trellis_bits, rate_weight);
  Matrix weights(job.weights.rows, job.weights.cols);
  job.weights.read(weights.view());
  return solve_slope(weights, &factor, grid, job.row_weights, job.factor.name);
}

std::vector<SlopeResult> solve_on_cuda(std::span<const SlopeJob> jobs, int trellis_bits, double rate_weight,
                                       CudaPlace place = 0) {
  auto choose = [&](size_t job, const std::vector<double>& upper_diagonal) {
    return grid_of(jobs[job].weights.rows, upper_diagonal, trellis_bits, rate_weight);
  };
  std::vector<SlopeResult> results(jobs.size());
  solve_slope_cuda(jobs, choose, place, [&](size_t job, SlopeResult result) { results[job] = std::move(result); });
  return results;
}

void expect_near(const SlopeReport& found, const SlopeReport& wanted) {
  EXPECT_NEAR(found.weight_mse, wanted.weight_mse, 1e-9 * wanted.weight_mse);
  EXPECT_NEAR(found.weighted_loss, wanted.weighted_loss, 1e-9 * wanted.weighted_loss);
  EXPECT_NEAR(found.row_weighted_loss, wanted.row_weighted_loss, 1e-9 * wanted.row_weighted_loss);
  EXPECT_NEAR(found.estimated_bits, wanted.estimated_bits, 1e-6 * wanted.estimated_bits);
  EXPECT_EQ(found.damping, wanted.damping);
  EXPECT_EQ(found.dead_columns, wanted.dead_columns);
}

TEST_P(CudaSlopeShapes, IsTheCpusSolution) {
  const auto [rows, columns, trellis_bits, rate_weight] = GetParam();
  const Matrix weights = random_matrix(rows, columns, 11, 2);
  const StoredHessian hessian = *store_in_memory(correlated_hessian(columns, 12));
  std::vector<double> row_weights;
  for (int64_t r = 0; r < rows; ++r) row_weights.push_back(0.5 + static_cast<double>(r % 3));
  for (ColumnOrder order : {ColumnOrder::kDescending, ColumnOrder::kNatural}) {
    const SlopeJob job{{"layer", &hessian, 0.02, order}, weights, row_weights};
    const SlopeResult cpu = solve_on_cpu(job, trellis_bits, rate_weight);
    const SlopeResult cuda = solve_on_cuda({&job, 1}, trellis_bits, rate_weight).at(0);
    EXPECT_EQ(cuda.codes.trellis_bits, trellis_bits);
    EXPECT_EQ(cuda.codes.row_steps, cpu.codes.row_steps);
    EXPECT_EQ(cuda.codes.column_steps, cpu.codes.column_steps);
    // These arguments lie away from ties.
    EXPECT_TRUE(cuda.codes.codes == cpu.codes.codes);
    expect_near(cuda.report, cpu.report);
  }
}

INSTANTIATE_TEST_SUITE_P(All, CudaSlopeShapes,
                         ::testing::Values(Case{1, 1, 5, 0}, Case{3, 2, 0, 0}, Case{70, 65, 0, 0.4}, Case{64, 64, 2, 0},
                                           Case{25, 130, 3, 0.2}, Case{512, 40, 4, 0}, Case{600, 70, 5, 0},
                                           Case{513, 130, 5, 0.3}, Case{1100, 64, 6, 0}, Case{300, 100, 7, 0},
                                           Case{512, 128, 8, 0}, Case{530, 20, 8, 0.2}, Case{600, 300, 5, 0},
                                           Case{450, 385, 8, 0.2}));

// By bits of the trellis.
class CudaSlopeTrellis : public CudaTest, public ::testing::WithParamInterface<int> {};

// Rows that end at every place of a group of the trellis's rows (slope_viterbi.cuh), and in the next segment.
// Without a weight of the rate, costs are the host's in every bit.
TEST_P(CudaSlopeTrellis, AnyNumberOfRows) {
  const int trellis_bits = GetParam();
  const StoredHessian hessian = *store_in_memory(correlated_hessian(9, 3));
  for (int64_t rows : {1, 2, 3, 5, 8, 9, 15, 31, 62, 100, 255, 373, 504, 505, 506, 507, 508, 509, 510, 511, 512, 515}) {
    const Matrix weights = random_matrix(rows, 9, static_cast<uint32_t>(rows), 2);
    const SlopeJob job{{"layer", &hessian, 0.02}, weights};
    EXPECT_TRUE(solve_on_cuda({&job, 1}, trellis_bits, 0).at(0).codes.codes ==
                solve_on_cpu(job, trellis_bits, 0).codes.codes)
        << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, CudaSlopeTrellis, ::testing::Range(2, kMaxTrellisBits + 1));

// Layers of several sizes, some of them with columns that no token ever activated, in one call and one by one, also in
// little memory.
TEST_F(CudaSlope, LayersDoNotDependOnEachOther) {
  std::vector<Matrix> weights;
  std::vector<StoredHessian> hessians;
  for (int i = 0; i < 6; ++i) {
    const int64_t columns = 40 + 30 * (i % 4);
    weights.push_back(random_matrix(100 + 150 * i, columns, static_cast<uint32_t>(i), 1));
    SymmetricMatrix hessian = correlated_hessian(columns, static_cast<uint32_t>(20 + i));
    if (i % 2 == 1)
      for (int64_t dead : {int64_t{3}, columns - 1})
        for (int64_t k = 0; k < columns; ++k) hessian.lower_row(std::max(dead, k))[std::min(dead, k)] = 0;
    hessians.push_back(*store_in_memory(std::move(hessian)));
  }
  std::vector<SlopeJob> jobs;
  for (size_t i = 0; i < weights.size(); ++i)
    jobs.push_back({{"layer", &hessians[i], 0.01 * static_cast<double>(i + 1)}, weights[i]});
  const std::vector<SlopeResult> together = solve_on_cuda(jobs, 5, 0);
  constexpr uint64_t kLittle = uint64_t{40} << 20;
  const std::vector<SlopeResult> in_little = solve_on_cuda(jobs, 5, 0, CudaPlace(0, kLittle));
  for (size_t i = 0; i < jobs.size(); ++i) {
    const SlopeResult alone = solve_on_cuda({&jobs[i], 1}, 5, 0).at(0);
    EXPECT_EQ(together[i].codes.codes, alone.codes.codes);
    EXPECT_EQ(in_little[i].codes.codes, alone.codes.codes);
    EXPECT_EQ(together[i].report.weighted_loss, alone.report.weighted_loss);
    EXPECT_EQ(alone.report.dead_columns.size(), i % 2 == 1 ? 2 : 0);
    const SlopeResult cpu = solve_on_cpu(jobs[i], 5, 0);
    EXPECT_TRUE(alone.codes.codes == cpu.codes.codes);
    expect_near(alone.report, cpu.report);
  }
}

// Few segments have helpers where the device has clusters; more than these have room for have none.
TEST_F(CudaSlope, ManySegmentsAreSolvedAsFewAre) {
  const Matrix weights = random_matrix(600, 260, 31, 1);
  const StoredHessian hessian = *store_in_memory(correlated_hessian(260, 32));
  const SlopeJob job{{"layer", &hessian, 0.02}, weights};
  const SlopeResult alone = solve_on_cuda({&job, 1}, 8, 0.2).at(0);
  const std::vector<SlopeJob> jobs(20, job);
  for (const SlopeResult& among_others : solve_on_cuda(jobs, 8, 0.2)) {
    EXPECT_TRUE(among_others.codes.codes == alone.codes.codes);
    EXPECT_EQ(among_others.report.weighted_loss, alone.report.weighted_loss);
  }
}

// As checkpoints and statistics are stored: bf16 and fp16 weights, codes that take two bytes, Hessians in float32,
// packed and square, scaled and with something added to the diagonal.
TEST_F(CudaSlope, WhateverWeightsAndHessiansAreStoredIn) {
  constexpr int64_t kRows = 70, kColumns = 90;
  const Matrix values = random_matrix(kRows, kColumns, 5, 1);
  const SymmetricMatrix matrix = correlated_hessian(kColumns, 6);
  ByteVector triangle, square;
  for (int64_t i = 0; i < kColumns; ++i)
    for (int64_t j = 0; j < kColumns; ++j) {
      const auto value = static_cast<float>(matrix(i, j));
      append_bytes(square, std::as_bytes(std::span(&value, 1)));
      if (j <= i) append_bytes(triangle, std::as_bytes(std::span(&value, 1)));
    }
  const StoredHessian packed(hold(triangle), StoredHessian::Layout::kTriangle, kColumns, 1, 1);
  const StoredHessian whole(hold(square), StoredHessian::Layout::kSquare, kColumns, 1, 1);
  const std::vector<double> added(kColumns, 0.25);
  const StoredHessian scaled = whole.scaled(0.7, added);
  for (const StoredHessian* hessian : {&packed, &whole, &scaled})
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const auto tensor =
          std::make_shared<const Tensor>(Tensor{dtype, {kRows, kColumns}, from_float32(dtype, values.values())});
      const StoredMatrix weights(tensor, kRows, kColumns);
      const SlopeJob job{{"layer", hessian, 0.02}, weights};
      const SlopeResult found = solve_on_cuda({&job, 1}, 5, 0.1).at(0), wanted = solve_on_cpu(job, 5, 0.1);
      EXPECT_TRUE(found.codes.codes == wanted.codes.codes) << static_cast<int>(dtype);
      expect_near(found.report, wanted.report);
    }
  Matrix large = values;
  large(3, 4) = 300;
  const SlopeJob job{{"layer", &packed, 0.02}, large};
  const SlopeResult found = solve_on_cuda({&job, 1}, 5, 0.1).at(0), wanted = solve_on_cpu(job, 5, 0.1);
  EXPECT_GT(wanted.codes.codes.code_bytes(), 1);
  EXPECT_TRUE(found.codes.codes == wanted.codes.codes);
}

TEST_F(CudaSlope, NothingToSolve) {
  const StoredHessian hessian = *store_in_memory(correlated_hessian(4, 1));
  const Matrix none(0, 4);
  const SlopeJob job{{"layer", &hessian, 0.01}, none};
  EXPECT_TRUE(solve_on_cuda({&job, 1}, 5, 0).at(0).codes.codes.empty());
  EXPECT_TRUE(solve_on_cuda({}, 5, 0).empty());
}

TEST_F(CudaSlope, AWeightThatIsNotFiniteIsRefused) {
  Matrix weights = random_matrix(20, 10, 1, 1);
  weights(7, 4) = std::numeric_limits<float>::quiet_NaN();
  const StoredHessian hessian = *store_in_memory(correlated_hessian(10, 1));
  const SlopeJob job{{"some.weight", &hessian, 0.01}, weights};
  EXPECT_THAT(bad_input_message([&] {
                solve_on_cuda({&job, 1}, 5, 0);
              }),
              ::testing::HasSubstr("tensor 'some.weight': weight (7, 4) is nan, must be finite"));
}

TEST_F(CudaSlope, AnIndefiniteHessianIsRefused) {
  const Matrix weights = random_matrix(20, 2, 1, 1);
  SymmetricMatrix indefinite(2);
  indefinite.lower_row(0)[0] = indefinite.lower_row(1)[1] = 1;
  indefinite.lower_row(1)[0] = 1e9;
  const StoredHessian hessian = *store_in_memory(std::move(indefinite));
  const SlopeJob job{{"some.weight", &hessian, 0.01}, weights};
  EXPECT_THAT(bad_input_message([&] {
                solve_on_cuda({&job, 1}, 5, 0);
              }),
              ::testing::HasSubstr("layer 'some.weight': Hessian is not positive definite"));
}

}  // namespace
}  // namespace thimble::cuda_slope_test
