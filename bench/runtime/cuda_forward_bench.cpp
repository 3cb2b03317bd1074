// cuda_forward_bench.cpp: sliding-window scoring and self-generation of a 30M-parameter golf-gpt with random weights on
// CUDA device 0: token-forwards per second over context lengths, and seconds for 64 x 2,048 and 128 x 1,024 generated
// tokens. Medians.
//   cuda_forward_bench [MODE]        or, for a profiler:  cuda_forward_bench MODE CONTEXT WINDOWS
//   cuda_forward_bench MODE generation
//   cuda_forward_bench MODE smollm2-135m|llama-3.2-1b    scoring of a Llama of that shape, at 2,048
// MODE: any of --numerics, bf16 by default.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>

#include "bench/runtime/golf30m_shape.h"
#include "bench/runtime/llama_shapes.h"
#include "runtime/cuda/cuda_models.h"

namespace thimble {
namespace {

template <typename Body>
double median_seconds(int runs, const Body& body) {
  std::vector<double> seconds;
  for (int run = 0; run < runs; ++run) {
    auto start = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + runs / 2);
  return seconds[static_cast<size_t>(runs / 2)];
}

// Windows of `context` inputs, `stride` apart, each scoring its last `stride` tokens.
double score_seconds(Scorer& model, std::span<const Token> tokens, size_t windows, size_t stride, int runs) {
  auto context = static_cast<size_t>(model.context());
  std::vector<ScoreWindow> list;
  for (size_t w = 0; w < windows; ++w)
    list.push_back({tokens.subspan(w * stride, context), tokens.subspan(w * stride + context - stride + 1, stride)});
  std::vector<float> nll(windows * stride);
  model.score(list, nll);  // warm up
  return median_seconds(runs, [&] { model.score(list, nll); });
}

void generate(const std::shared_ptr<const Weights>& weights, Numerics numerics) {
  for (const auto& [sequences, length] : {std::pair<int64_t, int64_t>(64, 2048), {128, 1024}}) {
    const TextScript script =
        uniform_script(weights->network->vocabulary(), {.sequences = sequences, .length = length});
    auto on_device = make_cuda_generator(weights, 0, numerics, length, sequences);
    SilentProgress progress;
    const double seconds = median_seconds(3, [&] { on_device->calibration(script, 0, sequences, progress); });
    std::printf("generation of %ld x %ld: %.3f s\n", static_cast<long>(sequences), static_cast<long>(length), seconds);
  }
}

void score_llama(const LlamaConfig& shape, Numerics numerics) {
  constexpr int64_t kContext = 2048;
  constexpr size_t kStride = 512, kWindows = 128;
  const std::shared_ptr<const Weights> weights = random_llama(shape);
  std::vector<Token> tokens;
  for (size_t i = 0; i < kContext + kWindows * kStride; ++i)
    tokens.push_back(static_cast<Token>(static_cast<int64_t>(i) * 7919 % weights->network->vocabulary()));
  const double seconds = score_seconds(*make_cuda_scorer(weights, 0, numerics, kContext), tokens, kWindows, kStride, 5);
  std::printf("context %ld, %zu windows, %zu tokens scored of each: %.3f M tokens/s\n", static_cast<long>(kContext),
              kWindows, kStride, static_cast<double>(kWindows * kContext) / seconds / 1e6);
}

int run(int count, char** values) {
  Numerics numerics = Numerics::kBf16;
  for (Numerics mode : kAllNumerics)
    if (count > 1 && numerics_name(mode) == values[1]) numerics = mode;
  if (const auto shape = llama_shape(count > 2 ? values[2] : "")) {
    score_llama(*shape, numerics);
    return 0;
  }
  const std::shared_ptr<const Weights> weights = random_golf30m();
  if (count > 2 && std::string_view(values[2]) == "generation") {
    generate(weights, numerics);
    return 0;
  }
  constexpr size_t kStride = 64;
  std::vector<Token> tokens;
  for (size_t i = 0; i < 300'000; ++i) tokens.push_back(static_cast<Token>(i * 7919 % 1024));
  if (count > 3) {
    auto on_device = make_cuda_scorer(weights, 0, numerics, std::stol(values[2]));
    double seconds = score_seconds(*on_device, tokens, std::stoul(values[3]), kStride, 3);
    std::printf("%.3f M tokens/s\n", std::stod(values[2]) * std::stod(values[3]) / seconds / 1e6);
    return 0;
  }
  std::printf("%s, %zu tokens scored per window\n%8s %8s %16s\n", cuda_arithmetic(0).c_str(), kStride, "context",
              "windows", "M tokens/s");
  for (int64_t context : {512, 1024, 2048, 4096, 8192}) {
    size_t windows = (numerics == Numerics::kFp32 ? 500'000 : 4'000'000) / static_cast<size_t>(context);
    windows = std::min(windows, (tokens.size() - static_cast<size_t>(context) - 1) / kStride);
    auto on_device = make_cuda_scorer(weights, 0, numerics, context);
    double seconds = score_seconds(*on_device, tokens, windows, kStride, 3);
    std::printf("%8ld %8zu %16.3f\n", static_cast<long>(context), windows,
                static_cast<double>(windows) * static_cast<double>(context) / seconds / 1e6);
  }
  generate(weights, numerics);
  return 0;
}

}  // namespace
}  // namespace thimble

int main(int count, char** values) { return thimble::run(count, values); }
