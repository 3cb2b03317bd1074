// forward_bench.cpp: the float32 forward pass of a 30M-parameter golf-gpt at 2048 tokens, as a share of the
// matrix-product rate that the same library reaches on this machine in the same run, with the same threads; and the
// backward pass, as a multiple of the forward pass in the same run. Counters: GFLOPS, share_of_gemm_peak (the forward
// pass alone), backward_over_forward.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "bench/runtime/golf30m_shape.h"
#include "runtime/base/random.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/window_gradients.h"
#include "runtime/cpu/window_scores.h"

namespace thimble {
namespace {

constexpr int64_t kContext = 2048;

std::vector<float> random_values(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(uniform_at(1, stream, i) - 0.5) * 0.1f;
  return values;
}

// Useful operations of one window whose last `scored` positions are scored: two per weight and token in the matrices,
// and per attended pair of positions two products of width d in each head. The last layer runs for scored positions
// only.
double forward_flops(const ModelConfig& c, double tokens, double scored) {
  auto d = [](int64_t value) { return static_cast<double>(value); };
  double wide = 2 * d(c.model_dim) * d(c.model_dim) + 2 * d(c.mlp_dim()) * d(c.model_dim);
  double key_value = 2 * d(c.kv_dim()) * d(c.model_dim);
  double pairs_all = tokens * (tokens + 1) / 2;
  double pairs_scored = pairs_all - (tokens - scored) * (tokens - scored + 1) / 2;
  double matrices = d(c.num_layers - 1) * tokens * (wide + key_value) + scored * wide + tokens * key_value +
                    tokens * (d(c.model_dim) * d(c.bigram_dim) + d(c.kv_dim()) * d(c.ve_dim)) +
                    scored * d(c.vocab_size) * d(c.model_dim);
  double attention = 2 * d(c.model_dim) * (d(c.num_layers - 1) * pairs_all + pairs_scored);
  return 2 * (matrices + attention);
}

// Best rate of large square products, in operations per second.
double gemm_peak() {
  static const double peak = [] {
    constexpr int64_t kSize = 2048;
    Matrix a(random_values(kSize * kSize, 1), kSize, kSize), b(random_values(kSize * kSize, 2), kSize, kSize),
        c(kSize, kSize);
    double best = 0;
    for (int i = 0; i < 8; ++i) {
      auto start = std::chrono::steady_clock::now();
      multiply_nt(a, b, c);
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
    }
    return best;
  }();
  return peak;
}

std::vector<uint16_t> random_window(int64_t count) {
  std::vector<uint16_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<uint16_t>(uniform_at(2, 0, static_cast<uint64_t>(i)) * 1024));
  return tokens;
}

void forward_window(benchmark::State& state) {
  Model model = random_golf30m();
  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer scorer(model, *backend, kContext);
  std::vector<uint16_t> tokens = random_window(kContext);
  int64_t scored = state.range(0);
  for (auto _ : state) benchmark::DoNotOptimize(scorer.log_probabilities(tokens, kContext - scored).data);
  double flops = forward_flops(model.config, static_cast<double>(kContext), static_cast<double>(scored));
  double iterations = static_cast<double>(state.iterations());
  state.counters["GFLOPS"] = benchmark::Counter(flops * iterations / 1e9, benchmark::Counter::kIsRate);
  state.counters["share_of_gemm_peak"] =
      benchmark::Counter(flops * iterations / gemm_peak(), benchmark::Counter::kIsRate);
  state.counters["tokens_per_second"] =
      benchmark::Counter(static_cast<double>(kContext) * iterations, benchmark::Counter::kIsRate);
}
BENCHMARK(forward_window)->ArgName("scored")->Arg(2048)->Arg(64)->UseRealTime()->Unit(benchmark::kMillisecond);

struct NobodyLooks final : GradientObserver {
  void on_output_gradient(const std::string&, ConstMatrixView, ConstMatrixView) override {}
  void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstMatrixView) override {}
};

template <typename Action>
double seconds_of(Action action) {
  auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Forward and backward pass; the least times of all iterations are compared.
void gradient_window(benchmark::State& state) {
  Model model = random_golf30m();
  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer scorer(model, *backend, kContext);
  WindowGradients gradients(model, *backend, kContext);
  std::vector<uint16_t> tokens = random_window(kContext + 1);
  std::span<const uint16_t> inputs = std::span(tokens).first(kContext);
  NobodyLooks observer;
  SmallGradients small;
  bool wants_small = state.range(0) != 0;
  double forward = 1e9, both = 1e9;
  for (auto _ : state) {
    both = std::min(both, seconds_of([&] { gradients.run(tokens, {}, observer, wants_small ? &small : nullptr); }));
    state.PauseTiming();
    forward = std::min(forward, seconds_of([&] { benchmark::DoNotOptimize(scorer.logits(inputs, 0).data); }));
    state.ResumeTiming();
  }
  state.counters["backward_over_forward"] = both / forward - 1;
  state.counters["tokens_per_second"] = static_cast<double>(kContext) / both;
}
BENCHMARK(gradient_window)->ArgName("small_tensors")->Arg(0)->Arg(1)->UseRealTime()->Unit(benchmark::kMillisecond);

void gemm_2048(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(gemm_peak());
  state.counters["GFLOPS"] = gemm_peak() / 1e9;
}
BENCHMARK(gemm_2048)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace thimble
