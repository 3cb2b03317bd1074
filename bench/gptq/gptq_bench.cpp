// gptq_bench.cpp: speed of Hessian accumulation, of its factorisation and of the solver, in multiply-adds per second.
#include <benchmark/benchmark.h>

#include <random>

#include "gptq/factor/hessian_factor.h"
#include "gptq/slope/slope_solver.h"
#include "gptq/statistics/hessian.h"
#include "gptq/trace/gptq_solver.h"

namespace thimble {
namespace {

Matrix normal_matrix(int64_t rows, int64_t cols) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  Matrix matrix(rows, cols);
  for (float& value : matrix.values()) value = normal(random);
  return matrix;
}

const std::string kLayer[] = {"layer"};

SymmetricMatrix hessian_of(int64_t columns) {
  HessianCollector collector;
  collector.on_linear_input(kLayer, normal_matrix(2048, columns));
  return std::move(collector).finish().at("layer")->matrix;
}

void set_multiply_adds(benchmark::State& state, double per_iteration) {
  state.counters["multiply_adds"] =
      benchmark::Counter(per_iteration, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

// One sequence of 2048 tokens at an input of K columns.
void accumulate_hessian(benchmark::State& state) {
  int64_t columns = state.range(0);
  Matrix x = normal_matrix(2048, columns);
  HessianCollector collector;
  for (auto _ : state) collector.on_linear_input(kLayer, x);
  set_multiply_adds(state, 0.5 * 2048 * static_cast<double>(columns * columns));
}
BENCHMARK(accumulate_hessian)->Arg(512)->Arg(1792)->Unit(benchmark::kMillisecond)->UseRealTime();

// Cholesky (K^3 / 6) and the inverse of its factor (K^3 / 6).
void factor_hessian_of(benchmark::State& state) {
  int64_t columns = state.range(0);
  SymmetricMatrix hessian = hessian_of(columns);
  for (auto _ : state) benchmark::DoNotOptimize(factor_hessian(hessian, kTraceDamping, "layer"));
  set_multiply_adds(state, static_cast<double>(columns * columns * columns) / 3);
}
BENCHMARK(factor_hessian_of)->Arg(512)->Arg(1792)->Unit(benchmark::kMillisecond)->UseRealTime();

// All clips of a matrix (R, K).
void solve_matrix(benchmark::State& state) {
  int64_t rows = state.range(0), columns = state.range(1);
  Matrix weights = normal_matrix(rows, columns);
  HessianFactor factor = factor_hessian(hessian_of(columns), kTraceDamping, "layer");
  for (auto _ : state) benchmark::DoNotOptimize(solve_gptq(weights, factor, 15, "layer"));
  set_multiply_adds(state,
                    0.5 * static_cast<double>(kClipFractions.size()) * static_cast<double>(rows * columns * columns));
}
BENCHMARK(solve_matrix)
    ->Args({256, 512})
    ->Args({512, 512})
    ->Args({1792, 512})
    ->Args({512, 1792})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// 512 x 512 with 2^bits states, at about 2 bits per weight.
void solve_slope_of(benchmark::State& state) {
  constexpr int64_t kSize = 512;
  Matrix weights = normal_matrix(kSize, kSize);
  HessianFactor factor = factor_hessian(hessian_of(kSize), kTraceDamping, "layer");
  SlopeGrid grid{static_cast<int>(state.range(0)), 0.25, std::vector<int16_t>(kSize, -kStepsPerOctave),
                 std::vector<int16_t>(kSize)};
  for (auto _ : state) benchmark::DoNotOptimize(solve_slope(weights, &factor, grid, {}, "layer"));
  state.counters["weights"] =
      benchmark::Counter(static_cast<double>(kSize * kSize), benchmark::Counter::kIsIterationInvariantRate);
}
BENCHMARK(solve_slope_of)->Arg(0)->Arg(3)->Arg(6)->Arg(8)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace thimble
