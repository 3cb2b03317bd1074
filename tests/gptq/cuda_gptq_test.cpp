// cuda_gptq_test.cpp: the CUDA solver against the CPU's.
#include "gptq/cuda_gptq.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "gptq/grid.h"
#include "runtime/dtype.h"
#include "runtime/error.h"
#include "tests/gptq/cuda_device.h"
#include "tests/gptq/gptq_replay.h"
#include "tests/gptq/gptq_samples.h"
#include "tests/runtime/error_matcher.h"

namespace thimble {
namespace {

using testing::HasSubstr;

class CudaGptq : public CudaTest {};

GptqResult solve_on_cuda(const SymmetricMatrix& hessian, ConstMatrixView weights, int max_code, double damping) {
  const SymmetricMatrix* hessians[] = {&hessian};
  GptqJob jobs[] = {{"layer", weights, max_code, 0}};
  return solve_gptq_cuda(hessians, jobs, damping, 0).at(0);
}

void expect_same(const GptqResult& a, const GptqResult& b) {
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.report.clip_fraction, b.report.clip_fraction);
  EXPECT_EQ(a.report.weight_mse, b.report.weight_mse);
  EXPECT_EQ(a.report.weighted_loss, b.report.weighted_loss);
  EXPECT_EQ(a.report.damping, b.report.damping);
  EXPECT_EQ(a.report.dead_columns, b.report.dead_columns);
}

// `tolerance`: how much the factor's rounding may change arguments, in steps, and the loss, relatively.
// Returns the number of codes that differ from the CPU's.
int64_t expect_solution(const SymmetricMatrix& hessian, ConstMatrixView weights, int max_code, double damping,
                        double tolerance, const GptqResult& found) {
  HessianFactor factor = factor_hessian(hessian, damping, "layer");
  GptqResult cpu = solve_gptq(weights, factor, max_code, "layer");
  EXPECT_EQ(found.report.damping, cpu.report.damping);
  EXPECT_EQ(found.report.dead_columns, cpu.report.dead_columns);
  EXPECT_EQ(found.codes.max_code, max_code);
  EXPECT_EQ(found.codes.codes.size(), cpu.codes.codes.size());
  EXPECT_EQ(found.codes.row_scales, row_scales(weights, found.report.clip_fraction, max_code, "layer"));
  for (int8_t code : found.codes.codes) EXPECT_LE(std::abs(code), max_code);
  if (testing::Test::HasFailure()) return 0;

  GptqReplay replay = replay_gptq(weights, factor, found.codes);
  EXPECT_LE(replay.worst_excess, tolerance);
  EXPECT_EQ(found.report.weight_mse, replay.weight_mse);
  EXPECT_NEAR(found.report.weighted_loss, replay.weighted_loss, tolerance * replay.weighted_loss);
  if (found.report.clip_fraction != cpu.report.clip_fraction) {
    EXPECT_NEAR(found.report.weight_mse, cpu.report.weight_mse, 0.01 * cpu.report.weight_mse);
    return 0;
  }
  int64_t differing = 0;
  for (size_t i = 0; i < cpu.codes.codes.size(); ++i) differing += found.codes.codes[i] != cpu.codes.codes[i];
  if (differing == 0) {
    EXPECT_EQ(found.report.weight_mse, cpu.report.weight_mse);
  }
  return differing;
}

// Its arguments are known to lie away from ties.
void expect_codes_of_cpu(const SymmetricMatrix& hessian, const Matrix& weights, int max_code, double damping) {
  GptqResult found = solve_on_cuda(hessian, weights, max_code, damping);
  EXPECT_EQ(expect_solution(hessian, weights, max_code, damping, 1e-9, found), 0);
}

// X^T X / T of correlated columns, by the accumulator: quick for many columns.
SymmetricMatrix large_hessian(int64_t columns, uint32_t seed) {
  Matrix x = random_matrix(2 * columns, columns, seed);
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t k = 1; k < columns; ++k) x(t, k) += 0.8F * x(t, k - 1);
  HessianAccumulator accumulator("layer", columns);
  accumulator.add(x);
  return std::move(accumulator).finish().matrix;
}

struct Shape {
  int64_t rows, columns;
  int max_code;
};

TEST_F(CudaGptq, ShapesFromOneWeightToSeveralTiles) {
  uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (Shape shape : {Shape{1, 1, 15},
                      {1, 40, 15},
                      {9, 1, 31},
                      {5, 2, 1},
                      {7, 37, 31},
                      {130, 20, 15},
                      {64, 64, 15},
                      {65, 63, 31},
                      {63, 65, 15},
                      {3, 127, 15},
                      {3, 128, 15},
                      {3, 129, 127},
                      {200, 300, 15}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns << ", code " << shape.max_code);
    Matrix weights = random_matrix(shape.rows, shape.columns, seed++, 2);
    SymmetricMatrix hessian = correlated_hessian(shape.columns, seed++);
    GptqResult found = solve_on_cuda(hessian, weights, shape.max_code, 0.02);
    EXPECT_LE(expect_solution(hessian, weights, shape.max_code, 0.02, 1e-9, found), shape.columns);
  }
}

TEST_F(CudaGptq, LargeLayersDifferOnlyAtTies) {
  uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (Shape shape : {Shape{512, 512, 15}, {256, 1000, 31}, {100, 1792, 15}}) {
    SCOPED_TRACE(testing::Message() << shape.rows << " x " << shape.columns);
    Matrix weights = random_matrix(shape.rows, shape.columns, seed++, 0.3F);
    weights(shape.rows / 2, shape.columns / 3) = 5;
    SymmetricMatrix hessian = large_hessian(shape.columns, seed++);
    GptqResult found = solve_on_cuda(hessian, weights, shape.max_code, kTraceDamping);
    int64_t differing = expect_solution(hessian, weights, shape.max_code, kTraceDamping, 1e-9, found);
    std::printf("%lld x %lld: %lld codes differ from the CPU's\n", static_cast<long long>(shape.rows),
                static_cast<long long>(shape.columns), static_cast<long long>(differing));
    EXPECT_LE(differing, shape.columns);  // a tie may change all later codes of its row
  }
}

TEST_F(CudaGptq, ManyLayersOfSeveralHessiansAtOnce) {
  std::vector<SymmetricMatrix> hessians = {correlated_hessian(200, 1), correlated_hessian(70, 2),
                                           correlated_hessian(200, 3), correlated_hessian(130, 4),
                                           correlated_hessian(150, 5)};
  hessians[3].lower_row(7)[7] = 0;  // a dead column; what stands beside it does not count
  std::vector<Matrix> weights;
  std::vector<GptqJob> jobs;
  for (size_t index : {2, 0, 3, 1, 0, 3, 2, 1, 0}) {
    int64_t rows = 30 + 50 * static_cast<int64_t>(weights.size());
    weights.push_back(random_matrix(rows, hessians[index].size(), static_cast<uint32_t>(rows)));
    jobs.push_back({"layer " + std::to_string(rows), {}, weights.size() % 2 == 0 ? 31 : 15, index});
  }
  for (size_t j = 0; j < jobs.size(); ++j) jobs[j].weights = weights[j];
  Matrix nothing(0, 150);
  jobs.push_back({"empty", nothing, 15, 4});
  std::vector<const SymmetricMatrix*> pointers;
  for (const SymmetricMatrix& hessian : hessians) pointers.push_back(&hessian);

  std::vector<int> calls(jobs.size());
  std::vector<GptqResult> found = solve_gptq_cuda(pointers, jobs, 0.01, 0, [&](size_t job, const GptqResult& result) {
    ++calls.at(job);
    EXPECT_EQ(result.codes.row_scales.size(), static_cast<size_t>(jobs[job].weights.rows));
  });
  EXPECT_THAT(calls, testing::Each(1));
  EXPECT_TRUE(found.back().codes.codes.empty());
  EXPECT_EQ(found.back().codes.max_code, 15);
  std::vector<GptqResult> again = solve_gptq_cuda(pointers, jobs, 0.01, 0);
  std::vector<GptqResult> scarce;  // with little more memory than the least
  int refused = 0;
  for (uint64_t limit = 1 << 16; scarce.empty(); limit += limit / 4) {
    ASSERT_LT(limit, uint64_t{1} << 34);
    try {
      scarce = solve_gptq_cuda(pointers, jobs, 0.01, {0, limit});
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("out of device memory"), HasSubstr(std::to_string(limit))));
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (size_t j = 0; j < weights.size(); ++j) {
    SCOPED_TRACE(jobs[j].name);
    const SymmetricMatrix& hessian = hessians[jobs[j].hessian_index];
    EXPECT_LE(expect_solution(hessian, jobs[j].weights, jobs[j].max_code, 0.01, 1e-9, found[j]), hessian.size());
    expect_same(found[j], again[j]);
    expect_same(found[j], scarce[j]);
    expect_same(found[j], solve_on_cuda(hessian, jobs[j].weights, jobs[j].max_code, 0.01));
  }
}

TEST_F(CudaGptq, RowsOfAWiderMatrix) {
  Matrix wide = random_matrix(10, 100, 1);
  SymmetricMatrix hessian = correlated_hessian(60, 2);
  ConstMatrixView part = wide.view().block_cols(20, 60);
  Matrix copy(10, 60);
  for (int64_t r = 0; r < 10; ++r) std::copy(part.row(r), part.row(r) + 60, copy.row(r));
  expect_same(solve_on_cuda(hessian, part, 15, 0.01), solve_on_cuda(hessian, copy, 15, 0.01));
}

TEST_F(CudaGptq, ExactTiesGoToTheEvenCodeAsOnTheCpu) {
  // A diagonal Hessian leaves the arguments alone: multiples of half a step.
  Matrix weights(31, 80);
  for (int64_t r = 0; r < 31; ++r)
    for (int64_t k = 0; k < 80; ++k) weights(r, k) = static_cast<float>((r * 80 + k) % 63 - 31) / 2;
  for (int64_t r = 0; r < 31; ++r) weights(r, 0) = 15;
  SymmetricMatrix hessian(80);
  for (int64_t k = 0; k < 80; ++k) hessian.lower_row(k)[k] = static_cast<double>(1 + k % 7);
  expect_codes_of_cpu(hessian, weights, 15, 0.01);
}

TEST_F(CudaGptq, DeadColumnsGetCodeZero) {
  SymmetricMatrix hessian = correlated_hessian(100, 3);
  for (int64_t dead : {0, 13, 64, 99})
    for (int64_t k = 0; k < 100; ++k) (k <= dead ? hessian.lower_row(dead)[k] : hessian.lower_row(k)[dead]) = 0;
  Matrix weights = random_matrix(20, 100, 4);
  GptqResult found = solve_on_cuda(hessian, weights, 15, 0.01);
  EXPECT_LE(expect_solution(hessian, weights, 15, 0.01, 1e-9, found), 100);
  EXPECT_EQ(found.report.dead_columns, (std::vector<int64_t>{0, 13, 64, 99}));
  for (size_t r = 0; r < 20; ++r)
    for (size_t dead : {0, 13, 64, 99}) EXPECT_EQ(found.codes.codes[r * 100 + dead], 0);
  expect_codes_of_cpu(SymmetricMatrix(70), random_matrix(5, 70, 1), 15, 0.01);  // all dead
}

TEST_F(CudaGptq, ZeroAndConstantRowsAndAnOutlier) {
  Matrix weights(4, 90);
  for (int64_t k = 0; k < 90; ++k) {
    weights(1, k) = 31;
    weights(2, k) = -0.001F;
    weights(3, k) = 0.1F * static_cast<float>(k % 7);
  }
  weights(3, 5) = -60000;
  SymmetricMatrix hessian = correlated_hessian(90, 1);
  expect_codes_of_cpu(hessian, weights, 31, 0.01);
}

TEST_F(CudaGptq, SingularHessiansAreDampedUntilTheyCanBeFactored) {
  SymmetricMatrix ones(150);
  for (double& value : ones.values()) value = 1;
  SymmetricMatrix indefinite = diagonal_hessian({1, 0.5, 0.5});  // as in hessian_factor_test.cpp: 0.075 becomes 7.5
  indefinite.lower_row(2)[1] = 1;
  Matrix weights = random_matrix(20, 150, 1), few = random_matrix(4, 3, 2);

  GptqResult found = solve_on_cuda(ones, weights, 15, 0);
  EXPECT_EQ(found.report.damping, 1e-6);
  EXPECT_LE(expect_solution(ones, weights, 15, 0, 1e-5, found), 20 * 150);  // a condition of 1e8
  found = solve_on_cuda(indefinite, few, 15, 0.075);
  EXPECT_NEAR(found.report.damping, 7.5, 1e-12);
  EXPECT_EQ(expect_solution(indefinite, few, 15, 0.075, 1e-9, found), 0);

  // In one wave with a Hessian that needs no more damping.
  SymmetricMatrix good = correlated_hessian(150, 7);
  const SymmetricMatrix* hessians[] = {&good, &ones};
  GptqJob jobs[] = {{"singular", weights, 15, 1}, {"good", weights, 15, 0}};
  std::vector<GptqResult> both = solve_gptq_cuda(hessians, jobs, 0, 0);
  EXPECT_EQ(both[0].report.damping, 1e-6);
  EXPECT_EQ(both[1].report.damping, 0);
  expect_same(both[0], solve_on_cuda(ones, weights, 15, 0));
  expect_same(both[1], solve_on_cuda(good, weights, 15, 0));
}

TEST_F(CudaGptq, ErrorsAreTheCpus) {
  SymmetricMatrix hopeless = diagonal_hessian({1, 1}), bad = diagonal_hessian({1, 1}), good = diagonal_hessian({1, 1});
  hopeless.lower_row(1)[0] = 1e9;
  bad.lower_row(1)[0] = std::numeric_limits<double>::quiet_NaN();
  Matrix weights = random_matrix(70, 2, 1), huge = random_matrix(70, 2, 1);
  huge(66, 1) = 1e9F;
  for (auto [hessian, layer] : {std::pair{&hopeless, &weights}, {&bad, &weights}, {&good, &huge}}) {
    std::string on_cpu =
        bad_input_message([&] { solve_gptq(*layer, factor_hessian(*hessian, 0.01, "layer"), 15, "layer"); });
    EXPECT_EQ(bad_input_message([&] { solve_on_cuda(*hessian, *layer, 15, 0.01); }), on_cpu);
    EXPECT_THAT(on_cpu, HasSubstr("layer"));
  }
  EXPECT_THROW(solve_on_cuda(good, Matrix(2, 3), 15, 0.01), Error);
}

TEST_F(CudaGptq, ADeviceThatIsNotThereIsADeviceError) {
  EXPECT_THROW(solve_gptq_cuda({}, {}, 0.01, 4096), DeviceError);
}

}  // namespace
}  // namespace thimble
