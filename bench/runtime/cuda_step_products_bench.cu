// cuda_step_products_bench.cu: the products of one generated position on CUDA device 0, in bf16, as a graph of eleven
// layers of a 30M-parameter golf-gpt launches them: those of today, and the candidate of step_product.cuh, one kernel
// after the other and overlapping. Medians of
// microseconds for one layer's, launches included, and the largest difference of their results in units of the last of
// eight bits.
//   cuda_step_products_bench [ROWS...]        64 and 128 by default
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/runtime/product_contenders.cuh"
#include "bench/runtime/step_product.cuh"
#include "runtime/cuda/cuda_products.cuh"

namespace thimble {
namespace {

using Element = __nv_bfloat16;

constexpr int kLayers = 11;
constexpr int kTileColumns = 32, kHeadColumns = 64;

void run_today(const Product& p, cudaStream_t stream) {
  static const CudaProducts<Element> products(/*stepping=*/true);
  const GemmOperands<Element> operands{p.x, p.depth, p.weight, p.rows, p.columns, p.depth};
  switch (p.follows) {
    case Follows::kNothing: return products.linear(operands, {p.out, p.columns}, stream);
    case Follows::kActivation:
      return products.activate(operands, {}, Activation::kLeakyReluSquared, nullptr, p.out, p.columns, stream);
    case Follows::kSum: return products.add(operands, p.out, p.columns, nullptr, nullptr, {}, stream);
  }
}

template <bool kOverlaps>
void run_candidate(const Product& p, cudaStream_t stream) {
  const GemmOperands<Element> operands{p.x, p.depth, p.weight, p.rows, p.columns, p.depth};
  switch (p.follows) {
    case Follows::kNothing:  // heads stay whole
      return launch_step_product<Element, kHeadColumns>(operands, RoundedEpilogue<Element>{p.out, p.columns}, kOverlaps,
                                                        stream);
    case Follows::kActivation:
      return launch_step_product<Element, kTileColumns>(
          operands, ActivationEpilogue<Element, Activation::kLeakyReluSquared, false>{{}, p.out, p.columns, nullptr},
          kOverlaps, stream);
    case Follows::kSum:
      return launch_step_product<Element, kTileColumns>(
          operands, ResidualEpilogue<Element, false>{p.out, p.columns, nullptr, {}, p.rows, nullptr}, kOverlaps,
          stream);
  }
}

using Run = void (*)(const Product&, cudaStream_t);

// The products of all layers behind each other in a graph. Microseconds for a layer.
float in_a_graph(const std::vector<Product>& products, Run run) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  for (const Product& p : products) run(p, stream);
  check_cuda(cudaStreamEndCapture(stream, &graph));
  check_cuda(cudaGraphInstantiate(&made, graph, 0));
  const float microseconds = median_microseconds([&] { check_cuda(cudaGraphLaunch(made, nullptr)); });
  cudaGraphExecDestroy(made);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return microseconds / static_cast<float>(kLayers);
}

std::vector<float> result_of(const Product& p, Run run) {
  std::vector<Element> stored(static_cast<size_t>(p.rows * p.columns));
  check_cuda(cudaMemset(p.out, 0, stored.size() * sizeof stored[0]));
  run(p, nullptr);
  check_cuda(cudaMemcpy(stored.data(), p.out, stored.size() * sizeof stored[0], cudaMemcpyDeviceToHost));
  std::vector<float> values;
  for (const Element value : stored) values.push_back(__bfloat162float(value));
  return values;
}

// Relative to the larger of the two, in 2^-8.
float largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  float largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float size = std::max({std::abs(a[i]), std::abs(b[i]), 1e-2F});
    largest = std::max(largest, std::abs(a[i] - b[i]) / size * 256);
  }
  return largest;
}

void compare(int64_t rows) {
  struct Kind {
    const char* name;
    int columns, depth;
    Follows follows;
  };
  constexpr Kind kKinds[] = {{"queries, keys, values", 1024, 512, Follows::kNothing},
                             {"attention's output", 512, 512, Follows::kSum},
                             {"MLP up", 1792, 512, Follows::kActivation},
                             {"MLP down", 512, 1792, Follows::kSum}};
  std::vector<DeviceArray<Element>> held;
  auto room = [&](int64_t elements, uint32_t seed) {
    held.push_back(random_values(elements, seed));
    return held.back().data();
  };
  std::vector<std::vector<Product>> of_kind;
  std::vector<Product> layers;
  // Each layer has weights of its own, more than the device's caches hold together.
  for (const Kind& kind : kKinds) {
    Element *x = room(rows * kind.depth, 1), *out = room(rows * kind.columns, 2);
    of_kind.emplace_back();
    for (uint32_t i = 0; i < kLayers; ++i)
      of_kind.back().push_back(
          {x, room(int64_t{kind.columns} * kind.depth, 3 + i), out, rows, kind.columns, kind.depth, kind.follows});
  }
  for (size_t i = 0; i < kLayers; ++i)
    for (const std::vector<Product>& products : of_kind) layers.push_back(products[i]);

  std::printf("%lld rows\n%-22s %12s %12s %12s %12s\n", static_cast<long long>(rows), "", "today, us", "candidate",
              "overlapping", "difference");
  auto tell = [](const char* name, const std::vector<Product>& products) {
    float difference = 0;
    for (const Product& p : products)
      difference =
          std::max(difference, largest_difference(result_of(p, run_today), result_of(p, run_candidate<false>)));
    std::printf("%-22s %12.2f %12.2f %12.2f %12.2f\n", name, in_a_graph(products, run_today),
                in_a_graph(products, run_candidate<false>), in_a_graph(products, run_candidate<true>), difference);
  };
  for (size_t i = 0; i < of_kind.size(); ++i) tell(kKinds[i].name, of_kind[i]);
  tell("all four", layers);
}

int run(int count, char** values) {
  std::vector<int64_t> all;
  for (int i = 1; i < count; ++i) all.push_back(std::stol(values[i]));
  if (all.empty()) all = {64, 128};
  for (const int64_t rows : all) compare(rows);
  return 0;
}

}  // namespace
}  // namespace thimble

int main(int count, char** values) {
  return thimble::exit_code_of("cuda_step_products_bench", [&] { return thimble::run(count, values); });
}
