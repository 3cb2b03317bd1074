// cuda_gptq_test.cpp: the CUDA solver against the CPU's.
#include "gptq/trace/gptq_solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "gptq/trace/grid.h"
#include "runtime/base/error.h"
#include "runtime/tensor/dtype.h"
#include "tests/gptq/statistics/gptq_samples.h"
#include "tests/gptq/trace/gptq_replay.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_gptq_test {
namespace {

using ::testing::HasSubstr;

// The grids: both solvers, and what the device's codes and scales must be whatever the codes are.
struct RowScaled {
  using Codes = RowScaledCodes;
  using Result = GptqResult;
  static constexpr auto kOnCuda = solve_gptq_cuda;
  static Result on_cpu(ConstMatrixView weights, const HessianFactor& factor, int max_code) {
    return solve_gptq(weights, factor, max_code, "layer");
  }
  static int code(const Result& result, int64_t columns, int64_t r, int64_t k) {
    return result.codes.codes.at(static_cast<size_t>(r * columns + k));
  }
  static void expect_form(const Result& found, ConstMatrixView weights, int max_code) {
    EXPECT_EQ(found.codes.max_code, max_code);
    EXPECT_EQ(found.codes.codes.size(), static_cast<size_t>(weights.rows * weights.cols));
    EXPECT_EQ(found.codes.row_scales, row_scales(weights, std::array{found.report.clip_fraction}, max_code, "layer"));
    for (int8_t code : found.codes.codes) EXPECT_LE(std::abs(code), max_code);
  }
};
struct Nvfp4 {
  using Codes = Nvfp4Codes;
  using Result = Nvfp4GptqResult;
  static constexpr auto kOnCuda = solve_gptq_nvfp4_cuda;
  static Result on_cpu(ConstMatrixView weights, const HessianFactor& factor, int) {
    return solve_gptq_nvfp4(weights, factor, "layer");
  }
  static int code(const Result& result, int64_t columns, int64_t r, int64_t k) {
    return nvfp4_code(result.codes, nvfp4_row_bytes(columns), r, k);
  }
  static void expect_form(const Result& found, ConstMatrixView weights, int) {
    Nvfp4Codes scales = choose_nvfp4_scales(weights);
    EXPECT_EQ(found.codes.block_scales, scales.block_scales);
    EXPECT_EQ(found.codes.tensor_scale, scales.tensor_scale);
    EXPECT_EQ(found.codes.codes.size(), scales.codes.size());
    EXPECT_EQ(found.report.clip_fraction, 1);
    for (int64_t r = 0; r < weights.rows; ++r) {
      for (int64_t k = 0; k < weights.cols; ++k) EXPECT_NE(code(found, weights.cols, r, k), kE2m1Sign) << "-0";
      if (weights.cols % 2 == 1) {
        EXPECT_EQ(code(found, weights.cols, r, weights.cols), 0) << "the unused nibble";
      }
    }
  }
};

template <typename Grid>
std::vector<typename Grid::Result> on_cuda(std::span<const GptqJob> jobs, double damping, const CudaPlace& place,
                                           const OnGptqSolved<typename Grid::Codes>& on_solved = {}) {
  std::vector<typename Grid::Result> results(jobs.size());
  Grid::kOnCuda(jobs, damping, place, [&](size_t job, typename Grid::Result result) {
    if (on_solved) on_solved(job, result);
    results[job] = std::move(result);
  });
  return results;
}

// What every grid must do; of one grid alone: CudaGptqGrids.
template <typename Grid>
class CudaGptq : public CudaTest {};
struct GridName {
  template <typename Grid>
  static std::string GetName(int) {
    return std::is_same_v<Grid, Nvfp4> ? "Nvfp4" : "RowScaled";
  }
};
using Grids = ::testing::Types<RowScaled, Nvfp4>;
TYPED_TEST_SUITE(CudaGptq, Grids, GridName);
class CudaGptqGrids : public CudaTest {};

template <typename Grid>
typename Grid::Result solve_on_cuda(const SymmetricMatrix& hessian, ConstMatrixView weights, int max_code,
                                    double damping) {
  const auto stored = store_in_memory(hessian);
  GptqJob jobs[] = {{"layer", weights, max_code, stored.get()}};
  return on_cuda<Grid>(jobs, damping, 0).at(0);
}

template <typename Result>
void expect_same(const Result& a, const Result& b) {
  EXPECT_EQ(a.codes, b.codes);
  EXPECT_EQ(a.report.clip_fraction, b.report.clip_fraction);
  EXPECT_EQ(a.report.weight_mse, b.report.weight_mse);
  EXPECT_EQ(a.report.weighted_loss, b.report.weighted_loss);
  EXPECT_EQ(a.report.damping, b.report.damping);
  EXPECT_EQ(a.report.dead_columns, b.report.dead_columns);
}

// `tolerance`: how much the factor's rounding may change arguments, in steps, and the loss, relatively.
// Returns the number of codes that differ from the CPU's.
template <typename Grid>
int64_t expect_solution(const SymmetricMatrix& hessian, ConstMatrixView weights, int max_code, double damping,
                        double tolerance, const typename Grid::Result& found) {
  HessianFactor factor = factor_hessian(hessian, damping, "layer");
  typename Grid::Result cpu = Grid::on_cpu(weights, factor, max_code);
  EXPECT_EQ(found.report.damping, cpu.report.damping);
  EXPECT_EQ(found.report.dead_columns, cpu.report.dead_columns);
  Grid::expect_form(found, weights, max_code);
  if (::testing::Test::HasFailure()) return 0;

  GptqReplay replay = replay_gptq(weights, factor, found.codes);
  EXPECT_LE(replay.worst_excess, tolerance);
  EXPECT_EQ(found.report.weight_mse, replay.weight_mse);
  EXPECT_NEAR(found.report.weighted_loss, replay.weighted_loss, tolerance * replay.weighted_loss);
  if (found.report.clip_fraction != cpu.report.clip_fraction) {
    EXPECT_NEAR(found.report.weight_mse, cpu.report.weight_mse, 0.01 * cpu.report.weight_mse);
    return 0;
  }
  int64_t differing = 0;
  for (int64_t r = 0; r < weights.rows; ++r)
    for (int64_t k = 0; k < weights.cols; ++k)
      differing += Grid::code(found, weights.cols, r, k) != Grid::code(cpu, weights.cols, r, k);
  if (differing == 0) {
    EXPECT_EQ(found.report.weight_mse, cpu.report.weight_mse);
  }
  return differing;
}

// Its arguments are known to lie away from ties.
template <typename Grid>
void expect_codes_of_cpu(const SymmetricMatrix& hessian, const Matrix& weights, int max_code, double damping) {
  typename Grid::Result found = solve_on_cuda<Grid>(hessian, weights, max_code, damping);
  EXPECT_EQ(expect_solution<Grid>(hessian, weights, max_code, damping, 1e-9, found), 0);
}

// X^T X / T of correlated columns, by the accumulator: quick for many columns.
SymmetricMatrix large_hessian(int64_t columns, uint32_t seed) {
  Matrix x = random_matrix(2 * columns, columns, seed);
  for (int64_t t = 0; t < x.rows(); ++t)
    for (int64_t k = 1; k < columns; ++k) x(t, k) += 0.8F * x(t, k - 1);
  HessianCollector collector;
  collector.on_linear_input(std::array{std::string("layer")}, x);
  return std::move(collector).finish().at("layer")->matrix;
}

struct Shape {
  int64_t rows, columns;
  int max_code;
};

TYPED_TEST(CudaGptq, ShapesFromOneWeightToSeveralTiles) {
  using Result = typename TypeParam::Result;
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
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.columns << ", code " << shape.max_code);
    Matrix weights = random_matrix(shape.rows, shape.columns, seed++, 2);
    SymmetricMatrix hessian = correlated_hessian(shape.columns, seed++);
    Result found = solve_on_cuda<TypeParam>(hessian, weights, shape.max_code, 0.02);
    EXPECT_LE(expect_solution<TypeParam>(hessian, weights, shape.max_code, 0.02, 1e-9, found), shape.columns);
  }
}

TYPED_TEST(CudaGptq, LargeLayersDifferOnlyAtTies) {
  using Result = typename TypeParam::Result;
  uint32_t seed = std::random_device()();
  std::printf("seed %u\n", seed);
  for (Shape shape : {Shape{512, 512, 15}, {256, 1000, 31}, {100, 1792, 15}}) {
    SCOPED_TRACE(::testing::Message() << shape.rows << " x " << shape.columns);
    Matrix weights = random_matrix(shape.rows, shape.columns, seed++, 0.3F);
    weights(shape.rows / 2, shape.columns / 3) = 5;
    SymmetricMatrix hessian = large_hessian(shape.columns, seed++);
    Result found = solve_on_cuda<TypeParam>(hessian, weights, shape.max_code, kTraceDamping);
    int64_t differing = expect_solution<TypeParam>(hessian, weights, shape.max_code, kTraceDamping, 1e-9, found);
    std::printf("%lld x %lld: %lld codes differ from the CPU's\n", static_cast<long long>(shape.rows),
                static_cast<long long>(shape.columns), static_cast<long long>(differing));
    EXPECT_LE(differing, shape.columns);  // a tie may change all later codes of its row
  }
}

TYPED_TEST(CudaGptq, ManyLayersOfSeveralHessiansAtOnce) {
  using Result = typename TypeParam::Result;
  std::vector<SymmetricMatrix> hessians = {correlated_hessian(200, 1), correlated_hessian(71, 2),
                                           correlated_hessian(233, 3), correlated_hessian(131, 4),
                                           correlated_hessian(150, 5)};
  hessians[3].lower_row(7)[7] = 0;  // a dead column; what stands beside it does not count
  std::vector<StoredHessian> stored;
  for (const SymmetricMatrix& hessian : hessians) stored.push_back(*store_in_memory(hessian));
  std::vector<Matrix> weights;
  std::vector<GptqJob> jobs;
  for (size_t index : {2, 0, 3, 1, 0, 3, 2, 1, 0}) {
    int64_t rows = 30 + 50 * static_cast<int64_t>(weights.size());
    weights.push_back(random_matrix(rows, hessians[index].size(), static_cast<uint32_t>(rows)));
    jobs.push_back({"layer " + std::to_string(rows), {}, weights.size() % 2 == 0 ? 31 : 15, &stored[index]});
  }
  for (size_t j = 0; j < jobs.size(); ++j) jobs[j].weights = weights[j];
  Matrix nothing(0, 150);
  jobs.push_back({"empty", nothing, 15, &stored[4]});

  std::vector<int> calls(jobs.size());
  std::vector<Result> found = on_cuda<TypeParam>(jobs, 0.01, 0, [&](size_t job, const Result& result) {
    ++calls.at(job);
    EXPECT_EQ(result.codes.codes.empty(), jobs[job].weights.rows == 0);
  });
  EXPECT_THAT(calls, ::testing::Each(1));
  TypeParam::expect_form(found.back(), nothing, 15);
  std::vector<Result> again = on_cuda<TypeParam>(jobs, 0.01, 0);
  std::vector<Result> scarce;  // with little more memory than the least
  int refused = 0;
  for (uint64_t limit = 1 << 16; scarce.empty(); limit += limit / 4) {
    ASSERT_LT(limit, uint64_t{1} << 34);
    try {
      scarce = on_cuda<TypeParam>(jobs, 0.01, {0, limit});
    } catch (const DeviceError& error) {
      EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("out of device memory"), HasSubstr(std::to_string(limit))));
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  for (size_t j = 0; j < weights.size(); ++j) {
    SCOPED_TRACE(jobs[j].name);
    const SymmetricMatrix& hessian = *jobs[j].hessian->load();
    EXPECT_LE(expect_solution<TypeParam>(hessian, jobs[j].weights, jobs[j].max_code, 0.01, 1e-9, found[j]),
              hessian.size());
    expect_same(found[j], again[j]);
    expect_same(found[j], scarce[j]);
    expect_same(found[j], solve_on_cuda<TypeParam>(hessian, jobs[j].weights, jobs[j].max_code, 0.01));
  }
}

TYPED_TEST(CudaGptq, RowsOfAWiderMatrix) {
  Matrix wide = random_matrix(10, 100, 1);
  SymmetricMatrix hessian = correlated_hessian(60, 2);
  ConstMatrixView part = wide.view().block_cols(20, 60);
  Matrix copy(10, 60);
  for (int64_t r = 0; r < 10; ++r) std::copy(part.row(r), part.row(r) + 60, copy.row(r));
  expect_same(solve_on_cuda<TypeParam>(hessian, part, 15, 0.01), solve_on_cuda<TypeParam>(hessian, copy, 15, 0.01));
}

TEST_F(CudaGptqGrids, ExactTiesGoToTheEvenCodeAsOnTheCpu) {
  // A diagonal Hessian leaves the arguments alone: multiples of half a step.
  Matrix weights(31, 80);
  for (int64_t r = 0; r < 31; ++r)
    for (int64_t k = 0; k < 80; ++k) weights(r, k) = static_cast<float>((r * 80 + k) % 63 - 31) / 2;
  for (int64_t r = 0; r < 31; ++r) weights(r, 0) = 15;
  SymmetricMatrix hessian(80);
  for (int64_t k = 0; k < 80; ++k) hessian.lower_row(k)[k] = static_cast<double>(1 + k % 7);
  expect_codes_of_cpu<RowScaled>(hessian, weights, 15, 0.01);
}

TYPED_TEST(CudaGptq, DeadColumnsGetCodeZero) {
  using Result = typename TypeParam::Result;
  SymmetricMatrix hessian = correlated_hessian(100, 3);
  for (int64_t dead : {0, 13, 64, 99})
    for (int64_t k = 0; k < 100; ++k) (k <= dead ? hessian.lower_row(dead)[k] : hessian.lower_row(k)[dead]) = 0;
  Matrix weights = random_matrix(20, 100, 4);
  Result found = solve_on_cuda<TypeParam>(hessian, weights, 15, 0.01);
  EXPECT_LE(expect_solution<TypeParam>(hessian, weights, 15, 0.01, 1e-9, found), 100);
  EXPECT_EQ(found.report.dead_columns, (std::vector<int64_t>{0, 13, 64, 99}));
  for (int64_t r = 0; r < 20; ++r)
    for (int64_t dead : {0, 13, 64, 99}) EXPECT_EQ(TypeParam::code(found, 100, r, dead), 0);
  expect_codes_of_cpu<TypeParam>(SymmetricMatrix(70), random_matrix(5, 70, 1), 15, 0.01);  // all dead
}

TEST_F(CudaGptqGrids, ZeroAndConstantRowsAndAnOutlier) {
  Matrix weights(4, 90);
  for (int64_t k = 0; k < 90; ++k) {
    weights(1, k) = 31;
    weights(2, k) = -0.001F;
    weights(3, k) = 0.1F * static_cast<float>(k % 7);
  }
  weights(3, 5) = -60000;
  SymmetricMatrix hessian = correlated_hessian(90, 1);
  expect_codes_of_cpu<RowScaled>(hessian, weights, 31, 0.01);
}

TYPED_TEST(CudaGptq, SingularHessiansAreDampedUntilTheyCanBeFactored) {
  using Result = typename TypeParam::Result;
  SymmetricMatrix ones(150);
  for (double& value : ones.values()) value = 1;
  SymmetricMatrix indefinite = diagonal_hessian({1, 0.5, 0.5});  // as in hessian_factor_test.cpp: 0.075 becomes 7.5
  indefinite.lower_row(2)[1] = 1;
  Matrix weights = random_matrix(20, 150, 1), few = random_matrix(4, 3, 2);

  Result found = solve_on_cuda<TypeParam>(ones, weights, 15, 0);
  EXPECT_EQ(found.report.damping, 1e-6);
  EXPECT_LE(expect_solution<TypeParam>(ones, weights, 15, 0, 1e-5, found), 20 * 150);  // a condition of 1e8
  found = solve_on_cuda<TypeParam>(indefinite, few, 15, 0.075);
  EXPECT_NEAR(found.report.damping, 7.5, 1e-12);
  EXPECT_EQ(expect_solution<TypeParam>(indefinite, few, 15, 0.075, 1e-9, found), 0);

  // In one wave with a Hessian that needs no more damping.
  SymmetricMatrix good = correlated_hessian(150, 7);
  const StoredHessian stored[] = {*store_in_memory(ones), *store_in_memory(good)};
  GptqJob jobs[] = {{"singular", weights, 15, &stored[0]}, {"good", weights, 15, &stored[1]}};
  std::vector<Result> both = on_cuda<TypeParam>(jobs, 0, 0);
  EXPECT_EQ(both[0].report.damping, 1e-6);
  EXPECT_EQ(both[1].report.damping, 0);
  expect_same(both[0], solve_on_cuda<TypeParam>(ones, weights, 15, 0));
  expect_same(both[1], solve_on_cuda<TypeParam>(good, weights, 15, 0));
}

TYPED_TEST(CudaGptq, ErrorsAreTheCpus) {
  SymmetricMatrix hopeless = diagonal_hessian({1, 1}), bad = diagonal_hessian({1, 1});
  hopeless.lower_row(1)[0] = 1e9;
  bad.lower_row(1)[0] = std::numeric_limits<double>::quiet_NaN();
  Matrix weights = random_matrix(70, 2, 1);
  for (const SymmetricMatrix* hessian : {&hopeless, &bad}) {
    std::string on_cpu =
        bad_input_message([&] { TypeParam::on_cpu(weights, factor_hessian(*hessian, 0.01, "layer"), 15); });
    EXPECT_EQ(bad_input_message([&] { solve_on_cuda<TypeParam>(*hessian, weights, 15, 0.01); }), on_cpu);
    EXPECT_THAT(on_cpu, HasSubstr("layer"));
  }
  EXPECT_THROW(solve_on_cuda<TypeParam>(diagonal_hessian({1, 1}), Matrix(2, 3), 15, 0.01), Error);
}

TEST_F(CudaGptqGrids, RowsThatFp16ScalesCannotReachAreTheCpusError) {
  SymmetricMatrix hessian = diagonal_hessian({1, 1});
  Matrix huge = random_matrix(70, 2, 1);
  huge(66, 1) = 1e9F;
  std::string on_cpu =
      bad_input_message([&] { solve_gptq(huge, factor_hessian(hessian, 0.01, "layer"), 15, "layer"); });
  EXPECT_EQ(bad_input_message([&] { solve_on_cuda<RowScaled>(hessian, huge, 15, 0.01); }), on_cpu);
  EXPECT_THAT(on_cpu, HasSubstr("row 66"));
}

TEST_F(CudaGptqGrids, Nvfp4TiesGoToTheEvenCodeAsOnTheCpu) {
  // A tensor scale of 1 and values of E2M1, every fourth one a middle between two: the best scale of many blocks is 1.
  constexpr float kMiddles[] = {0.25F, -0.75F, 1.25F, -1.75F, 2.5F, -3.5F, 5, -0.25F, 0.75F, -1.25F, 1.75F};
  Matrix weights(31, 81);
  for (int64_t r = 0; r < 31; ++r)
    for (int64_t k = 0; k < 81; ++k)
      weights(r, k) = k % 4 == 3 ? kMiddles[(r + k / 4) % 11] : float_from_e2m1(static_cast<uint8_t>(k % 16 + r));
  for (int64_t r = 0; r < 31; ++r) weights(r, 0) = kE2m1Max * kUe4m3Max;
  SymmetricMatrix hessian(81);
  for (int64_t k = 0; k < 81; ++k) hessian.lower_row(k)[k] = static_cast<double>(1 + k % 7);
  Nvfp4Codes scales = choose_nvfp4_scales(weights);
  ASSERT_EQ(scales.tensor_scale, 1);
  ASSERT_GT(std::ranges::count(scales.block_scales, ue4m3_from_float(1)), 31);
  expect_codes_of_cpu<Nvfp4>(hessian, weights, 0, 0.01);
}

TEST_F(CudaGptqGrids, Nvfp4ZeroAndTinyAndConstantBlocksAndAnOutlier) {
  Matrix weights(6, 93);
  for (int64_t k = 0; k < 93; ++k) {
    weights(1, k) = 31;
    weights(2, k) = -0.001F;  // too little for any scale beside the outlier
    weights(3, k) = 0.1F * static_cast<float>(k % 7);
    weights(4, k) = k / kNvfp4Block % 2 == 0 ? 0.0F : 5 - static_cast<float>(k % 11);  // every other block is 0
    weights(5, k) = 1e-40F;
  }
  weights(3, 5) = -60000;
  SymmetricMatrix hessian = correlated_hessian(93, 1);
  expect_codes_of_cpu<Nvfp4>(hessian, weights, 0, 0.01);
  expect_codes_of_cpu<Nvfp4>(hessian, Matrix(5, 93), 0, 0.01);  // all 0
  for (float& value : weights.values()) value *= 1e-40F;
  EXPECT_EQ(choose_nvfp4_scales(weights).tensor_scale, std::numeric_limits<float>::min());
  expect_codes_of_cpu<Nvfp4>(hessian, weights, 0, 0.01);
}

TYPED_TEST(CudaGptq, ADeviceThatIsNotThereIsADeviceError) {
  EXPECT_THROW(on_cuda<TypeParam>({}, 0.01, 4096), DeviceError);
}

}  // namespace
}  // namespace thimble::cuda_gptq_test
