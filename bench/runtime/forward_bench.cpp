// forward_bench.cpp: the forward pass of a 30M-parameter golf-gpt at 2048 tokens, in float32 and in bf16, as a share of
// the matrix-product rate that the same library reaches on this machine in the same run, with the same threads; and the
// backward pass, as a multiple of the forward pass in the same run. Counters: GFLOPS, share_of_gemm_peak (the forward
// pass alone), backward_over_forward.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>

#include "bench/runtime/golf30m_shape.h"
#include "runtime/base/random.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

constexpr int64_t kContext = 2048;

std::vector<float> random_values(int64_t count, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(count));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(uniform_at(1, stream, i) - 0.5) * 0.1f;
  return values;
}

// Useful operations of one window whose last `scored` positions are scored: two per weight and token in the matrices,
// and per attended pair of positions two products of width d in each head. What only scored positions need is computed
// for them alone.
double forward_flops(const Network& network, double tokens, double scored) {
  const PassPlan plan = plan_pass(network);
  const double pairs_all = tokens * (tokens + 1) / 2;
  const double pairs_scored = pairs_all - (tokens - scored) * (tokens - scored + 1) / 2;
  double products = scored * static_cast<double>(network.vocabulary() * network.matrix(network.head.weight).columns);
  for (size_t i = 0; i < network.nodes.size(); ++i) {
    const bool is_short = plan.forward[i].output.needed_rows_only;
    if (const auto* linear = std::get_if<op::Linear>(&network.nodes[i].operation)) {
      const MatrixUse& matrix = network.matrix(linear->weight);
      products += (is_short ? scored : tokens) * static_cast<double>(matrix.rows * matrix.columns);
    } else if (const auto* attention = std::get_if<op::Attention>(&network.nodes[i].operation)) {
      const auto width = static_cast<double>(attention->heads * attention->head_dim);
      products += 2 * width * (is_short ? pairs_scored : pairs_all);
    }
  }
  return 2 * products;
}

constexpr Numerics kNumerics[] = {Numerics::kFp32, Numerics::kBf16};

// Best rate of large square products, in operations per second.
double gemm_peak(Numerics numerics) {
  static const auto measure = [](ProductArithmetic arithmetic) {
    constexpr int64_t kSize = 2048;
    Matrix a(random_values(kSize * kSize, 1), kSize, kSize), b(random_values(kSize * kSize, 2), kSize, kSize),
        c(kSize, kSize);
    double best = 0;
    for (int i = 0; i < 8; ++i) {
      auto start = std::chrono::steady_clock::now();
      multiply_nt(a, b, c, arithmetic);
      double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      best = std::max(best, 2.0 * kSize * kSize * kSize / seconds);
    }
    return best;
  };
  static const double peaks[] = {measure(ProductArithmetic::kFloat32), measure(ProductArithmetic::kBf16)};
  return peaks[gradient_arithmetic(numerics) == ProductArithmetic::kBf16];
}

std::vector<Token> random_window(int64_t count) {
  std::vector<Token> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<Token>(uniform_at(2, 0, static_cast<uint64_t>(i)) * 1024));
  return tokens;
}

void forward_window(benchmark::State& state) {
  const std::shared_ptr<const Weights> model = random_golf30m();
  const Numerics numerics = kNumerics[state.range(1)];
  const std::unique_ptr<Scorer> scorer = make_cpu_scorer(model, numerics, kContext);
  std::vector<Token> tokens = random_window(kContext);
  Token other = tokens[0] ^ 1;  // another window each time: of the same one, the scorer would have it still
  const int64_t scored = state.range(0);
  Matrix scores(scored, model->network->vocabulary());
  for (auto _ : state) {
    std::swap(tokens[0], other);
    scorer->log_probabilities(tokens, scores);
  }
  double flops = forward_flops(*model->network, static_cast<double>(kContext), static_cast<double>(scored));
  double iterations = static_cast<double>(state.iterations());
  state.counters["GFLOPS"] = benchmark::Counter(flops * iterations / 1e9, benchmark::Counter::kIsRate);
  state.counters["share_of_gemm_peak"] =
      benchmark::Counter(flops * iterations / gemm_peak(numerics), benchmark::Counter::kIsRate);
  state.counters["tokens_per_second"] =
      benchmark::Counter(static_cast<double>(kContext) * iterations, benchmark::Counter::kIsRate);
}
BENCHMARK(forward_window)
    ->ArgNames({"scored", "bf16"})
    ->ArgsProduct({{2048, 64}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

struct NobodyLooks final : GradientObserver {
  void on_output_gradient(const std::string&, int64_t, ConstMatrixView, ConstMatrixView) override {}
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
  const std::shared_ptr<const Weights> model = random_golf30m();
  const bool for_gains = state.range(0) != 0;
  const ProductArithmetic arithmetic = gradient_arithmetic(kNumerics[state.range(1)]);
  CpuPass forward_pass(*model, kContext, gradient_policy(arithmetic));
  CpuGradients gradients(*model, kContext, for_gains, /*for_matrices=*/false, arithmetic);
  const std::vector<Token> tokens = random_window(kContext + 1);
  const std::span<const Token> inputs = std::span(tokens).first(kContext);
  Matrix logits(kContext, model->network->vocabulary());
  NobodyLooks observer;
  VectorGradients vectors;
  double forward = 1e9, both = 1e9;
  for (auto _ : state) {
    both = std::min(both, seconds_of([&] { gradients.run(tokens, {}, observer, for_gains ? &vectors : nullptr); }));
    state.PauseTiming();
    forward =
        std::min(forward, seconds_of([&] { forward_pass.logits(forward_pass.run(window_batch(inputs)), logits); }));
    state.ResumeTiming();
  }
  state.counters["backward_over_forward"] = both / forward - 1;
  state.counters["tokens_per_second"] = static_cast<double>(kContext) / both;
}
BENCHMARK(gradient_window)
    ->ArgNames({"for_gains", "bf16"})
    ->ArgsProduct({{0, 1}, {0, 1}})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void gemm_2048(benchmark::State& state) {
  const Numerics numerics = kNumerics[state.range(0)];
  for (auto _ : state) benchmark::DoNotOptimize(gemm_peak(numerics));
  state.counters["GFLOPS"] = gemm_peak(numerics) / 1e9;
}
BENCHMARK(gemm_2048)->ArgName("bf16")->Arg(0)->Arg(1)->Iterations(1)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace thimble
