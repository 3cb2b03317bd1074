// gptq_cuda_bench.cpp: GPTQ and Hessians of a golf model of 30M parameters on a CUDA device, on random data.
// 11 layers of width 512 with an MLP of 1792: 66 matrices, 33 Hessians of 512 columns and 11 of 1792.
#include <benchmark/benchmark.h>

#include <cmath>
#include <deque>
#include <random>

#include "gptq/factor/hessian_factor.h"
#include "gptq/statistics/hessian.cuh"
#include "gptq/trace/gptq_solver.h"
#include "runtime/tensor/dtype.h"

namespace thimble {
namespace {

constexpr int64_t kLayers = 11, kWidth = 512, kKeyWidth = 256, kMlpWidth = 1792;
constexpr int64_t kSequences = 64, kTokens = 2047;

// Correlations that fall off with the columns' distance, and unequal variances.
SymmetricMatrix random_hessian(int64_t columns, std::mt19937& random) {
  std::uniform_real_distribution<double> deviation(0.2, 2);
  std::vector<double> deviations(static_cast<size_t>(columns));
  for (double& value : deviations) value = deviation(random);
  SymmetricMatrix hessian(columns);
  for (int64_t i = 0; i < columns; ++i)
    for (int64_t j = 0; j <= i; ++j)
      hessian.lower_row(i)[j] = deviations[static_cast<size_t>(i)] * deviations[static_cast<size_t>(j)] *
                                std::pow(0.9, static_cast<double>(i - j));
  return hessian;
}

struct GolfLayers {
  std::deque<StoredHessian> hessians;
  std::vector<Matrix> weights;
  std::vector<GptqJob> jobs;

  GolfLayers() {
    std::mt19937 random(1);
    for (int64_t layer = 0; layer < kLayers; ++layer)
      for (auto [columns, matrices] :
           std::vector<std::pair<int64_t, std::vector<int64_t>>>{{kWidth, {kWidth, kKeyWidth, kKeyWidth}},
                                                                 {kWidth, {kWidth}},
                                                                 {kWidth, {kMlpWidth}},
                                                                 {kMlpWidth, {kWidth}}}) {
        const size_t first = jobs.size();
        for (int64_t rows : matrices) add_matrix(rows, columns, random);
        hessians.push_back(*store_in_memory(random_hessian(columns, random)));
        for (size_t j = first; j < jobs.size(); ++j) jobs[j].hessian = &hessians.back();
      }
    for (size_t j = 0; j < jobs.size(); ++j) jobs[j].weights = weights[j];
  }

  void add_matrix(int64_t rows, int64_t columns, std::mt19937& random) {
    std::normal_distribution<float> normal(0, 0.5F);
    Matrix matrix(rows, columns);
    for (float& value : matrix.values()) value = normal(random);
    weights.push_back(std::move(matrix));
    jobs.push_back({"layer " + std::to_string(jobs.size()), {}, 15, nullptr});
  }

  template <bool kNvfp4>
  void solve() const {
    if constexpr (kNvfp4)
      solve_gptq_nvfp4_cuda(jobs, kTraceDamping, 0, [](size_t, const Nvfp4GptqResult&) {});
    else
      solve_gptq_cuda(jobs, kTraceDamping, 0, [](size_t, const GptqResult&) {});
  }
};

const GolfLayers& golf_layers() {
  static const GolfLayers layers;
  return layers;
}

// From host memory to host memory; the first call of a process besides loads the kernels.
template <bool kNvfp4>
void solve_66_matrices(benchmark::State& state) {
  const GolfLayers& layers = golf_layers();
  check_cuda(cudaFree(nullptr));  // makes the context
  for (auto _ : state) layers.solve<kNvfp4>();
}
BENCHMARK(solve_66_matrices<false>)
    ->Name("first_solve_66_matrices")
    ->Iterations(1)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(solve_66_matrices<false>)
    ->Name("solve_66_matrices")
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();
BENCHMARK(solve_66_matrices<true>)
    ->Name("solve_66_matrices_nvfp4")
    ->Iterations(10)
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// One sequence of random activations, as often as needed.
template <typename T>
DeviceArray<T> random_activations() {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<T> sequence(static_cast<size_t>(kTokens * kMlpWidth));
  for (T& value : sequence) value = T(normal(random));
  DeviceArray<T> all(kSequences * kTokens * kMlpWidth);
  for (int64_t s = 0; s < kSequences; ++s)
    check_cuda(cudaMemcpy(all.data() + s * kTokens * kMlpWidth, sequence.data(), sequence.size() * sizeof(T),
                          cudaMemcpyHostToDevice));
  check_cuda(cudaDeviceSynchronize());
  return all;
}

template <typename T>
void add_all_inputs(CudaHessianCollector& collector, const T* x, cudaStream_t stream) {
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (int64_t input = 0; input < 4; ++input) {
      std::vector<std::string> name = {std::to_string(layer) + "." + std::to_string(input)};
      int64_t columns = input == 3 ? kMlpWidth : kWidth;
      collector.add(name, x, columns, kSequences, kTokens, columns, stream);
    }
}

// Sums of all 44 inputs of 64 x 2047 tokens that lie on the device. flops counts one triangle.
template <typename T>
void sum_hessians(benchmark::State& state) {
  DeviceArray<T> x = random_activations<T>();
  CudaStream stream;
  CudaHessianCollector collector;
  add_all_inputs(collector, x.data(), stream);
  stream.wait();
  for (auto _ : state) {
    add_all_inputs(collector, x.data(), stream);
    stream.wait();
  }
  double elements = kLayers * (3.0 * kWidth * kWidth + 1.0 * kMlpWidth * kMlpWidth);
  state.counters["flops"] = benchmark::Counter(
      elements * kSequences * kTokens, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}
BENCHMARK(sum_hessians<__nv_bfloat16>)->Iterations(10)->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK(sum_hessians<float>)->Iterations(3)->Unit(benchmark::kMillisecond)->UseRealTime();

// From the device's sums to a HessianSet in host memory.
void finish_hessians(benchmark::State& state) {
  DeviceArray<__nv_bfloat16> x = random_activations<__nv_bfloat16>();
  CudaStream stream;
  for (auto _ : state) {
    state.PauseTiming();
    CudaHessianCollector collector;
    add_all_inputs(collector, x.data(), stream);
    stream.wait();
    state.ResumeTiming();
    benchmark::DoNotOptimize(std::move(collector).finish());
  }
}
BENCHMARK(finish_hessians)->Iterations(3)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace thimble
