// cuda_step_bench.cu: what one generated position of a 30M-parameter golf-gpt waits for on CUDA device 0, in bf16, as a
// graph of eleven layers launches it. Its products: in tiles of 64 rows as wide products take, and with K shared by
// warps (cuda_step_product.cuh), one kernel after the other and overlapping; medians of microseconds for one layer's,
// launches included, and the largest difference of their results in units of the last of eight bits. Attention over
// cached keys and values: microseconds for a layer, and the rate at which the cache is read, as a share of that at
// which this device copies, counting bytes read and written.
//   cuda_step_bench [ROWS...]        64 and 128 by default
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/runtime/product_contenders.cuh"
#include "runtime/cuda/kernels/attention/cuda_attention.h"
#include "runtime/cuda/kernels/cuda_gemm.cuh"
#include "runtime/cuda/kernels/products/cuda_step_product.cuh"

namespace thimble {
namespace {

using Element = __nv_bfloat16;

constexpr int kLayers = 11;
constexpr int kTileColumns = 32, kHeadColumns = 64;

// launch(operands, epilogue, columns of a tile) with what follows a product.
template <typename Launch>
void with_epilogue(const Product& p, const Launch& launch) {
  const GemmOperands<Element> operands{p.x, p.depth, p.weight, p.rows, p.columns, p.depth};
  constexpr std::integral_constant<int, kTileColumns> tile;
  switch (p.follows) {
    case Follows::kNothing:  // heads stay whole
      return launch(operands, RoundedEpilogue<Element>{p.out, p.columns}, std::integral_constant<int, kHeadColumns>());
    case Follows::kActivation:
      return launch(operands,
                    ActivationEpilogue<Element, Activation::kLeakyReluSquared, false>{{}, p.out, p.columns, nullptr},
                    tile);
    case Follows::kSum:
      return launch(operands, ResidualEpilogue<Element, false>{p.out, p.columns, nullptr, {}, p.rows, nullptr}, tile);
  }
}

void run_tiles(const Product& p, cudaStream_t stream) {
  with_epilogue(p, [&](const auto& operands, const auto& epilogue, auto) {
    launch_gemm<Element, 1, 64, 4>(operands, epilogue, stream);
  });
}

template <bool kOverlaps>
void run_split(const Product& p, cudaStream_t stream) {
  with_epilogue(p,
                [&]<int kColumns>(const auto& operands, const auto& epilogue, std::integral_constant<int, kColumns>) {
                  launch_step_product<Element, kColumns>(operands, epilogue, kOverlaps, stream);
                });
}

using Run = void (*)(const Product&, cudaStream_t);

// Microseconds for a layer of what `launch(stream)` launches for all of them, as a graph.
template <typename Launch>
float in_a_graph(const Launch& launch) {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  check_cuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  launch(stream);
  check_cuda(cudaStreamEndCapture(stream, &graph));
  check_cuda(cudaGraphInstantiate(&made, graph, 0));
  const float microseconds = median_microseconds([&] { check_cuda(cudaGraphLaunch(made, nullptr)); });
  cudaGraphExecDestroy(made);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  return microseconds / static_cast<float>(kLayers);
}
float in_a_graph(const std::vector<Product>& products, Run run) {
  return in_a_graph([&](cudaStream_t stream) {
    for (const Product& p : products) run(p, stream);
  });
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

  std::printf("%lld rows\n%-22s %12s %12s %12s %12s\n", static_cast<long long>(rows), "", "tiles, us", "K shared",
              "overlapping", "difference");
  auto tell = [](const char* name, const std::vector<Product>& products) {
    float difference = 0;
    for (const Product& p : products)
      difference = std::max(difference, largest_difference(result_of(p, run_tiles), result_of(p, run_split<false>)));
    std::printf("%-22s %12.2f %12.2f %12.2f %12.2f\n", name, in_a_graph(products, run_tiles),
                in_a_graph(products, run_split<false>), in_a_graph(products, run_split<true>), difference);
  };
  for (size_t i = 0; i < of_kind.size(); ++i) tell(kKinds[i].name, of_kind[i]);
  tell("all four", layers);
}

// Bytes a microsecond that a copy reads and writes.
float copy_rate() {
  constexpr int64_t kBytes = int64_t{1} << 30;
  DeviceArray<char> from(kBytes, "copies"), to(kBytes, "copies");
  from.fill_zero();
  return 2.0F * static_cast<float>(kBytes) / median_microseconds([&] {
           check_cuda(cudaMemcpyAsync(to.data(), from.data(), kBytes, cudaMemcpyDeviceToDevice, nullptr));
         });
}

void time_attention(int64_t rows, float rate_of_copies) {
  constexpr int kHeads = 8, kKvHeads = 4, kWidth = 64, kCapacity = 2048;
  std::vector<DeviceArray<Element>> caches;
  for (int i = 0; i < kLayers; ++i) {
    caches.emplace_back(rows * kCapacity * 2 * kKvHeads * kWidth, "key/value cache");
    caches.back().fill_zero();
  }
  const DeviceArray<Element> query = random_values(rows * kHeads * kWidth, 1);
  DeviceArray<int> first(1);
  std::printf("attention of %lld rows\n%-22s %12s %12s %12s\n", static_cast<long long>(rows), "keys", "us", "TB/s",
              "share");
  for (const int keys : {256, 1024, 2048}) {
    const int position = keys - 1;
    check_cuda(cudaMemcpy(first.data(), &position, sizeof position, cudaMemcpyHostToDevice));
    const float microseconds = in_a_graph([&](cudaStream_t stream) {
      for (const DeviceArray<Element>& cache : caches)
        launch_step_attention<Element>({query.data(),
                                        cache.data(),
                                        kCapacity,
                                        static_cast<int>(rows),
                                        1,
                                        first.data(),
                                        0,
                                        kHeads,
                                        kKvHeads,
                                        0,
                                        /*exclusive=*/true,
                                        0,
                                        {}},
                                       kWidth, stream);
    });
    const auto bytes = static_cast<float>(rows * keys * 2 * kKvHeads * kWidth * static_cast<int64_t>(sizeof(Element)));
    std::printf("%-22d %12.2f %12.2f %12.2f\n", keys, microseconds, bytes / microseconds * 1e-6F,
                bytes / microseconds / rate_of_copies);
  }
}

int run(int count, char** values) {
  std::vector<int64_t> all;
  for (int i = 1; i < count; ++i) all.push_back(std::stol(values[i]));
  if (all.empty()) all = {64, 128};
  for (const int64_t rows : all) compare(rows);
  const float rate = copy_rate();
  for (const int64_t rows : all) time_attention(rows, rate);
  return 0;
}

}  // namespace
}  // namespace thimble

int main(int count, char** values) {
  return thimble::exit_code_of("cuda_step_bench", [&] { return thimble::run(count, values); });
}
