// product_contenders.cuh: what cuda_products_bench compares, for its sources.
#pragma once

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"

namespace thimble {

enum class Follows { kNothing, kActivation, kSum };

inline const char* name_of(Follows follows) {
  switch (follows) {
    case Follows::kNothing: return "plain";
    case Follows::kActivation: return "activated";
    case Follows::kSum: return "added";
  }
  return "";
}

// out (rows, columns) = x (rows, depth) W^T, W (columns, depth), and what follows.
struct Product {
  const __nv_bfloat16 *x, *weight;
  __nv_bfloat16* out;
  int64_t rows;
  int columns, depth;
  Follows follows;
};

struct Contender {
  std::string name;
  std::function<void(const Product&)> run;  // in the default stream
};

// Of product_cutlass.cu; none in a build without CUTLASS.
std::vector<Contender> cutlass_contenders(Follows follows);

// Values of a small spread around 0, the same for a seed in every run.
inline DeviceArray<__nv_bfloat16> random_values(int64_t count, uint32_t seed) {
  std::vector<__nv_bfloat16> values(static_cast<size_t>(count));
  for (__nv_bfloat16& value : values) {
    seed = seed * 1664525 + 1013904223;
    value = __float2bfloat16(static_cast<float>(seed >> 8) * 0x1p-25f - 0x1p-2f);
  }
  return DeviceArray<__nv_bfloat16>(std::span<const __nv_bfloat16>(values));
}

// Of one run, by the device's clock.
template <typename Body>
float median_microseconds(const Body& body) {
  std::array<float, 15> microseconds{};
  cudaEvent_t begin = nullptr, end = nullptr;
  check_cuda(cudaEventCreate(&begin));
  check_cuda(cudaEventCreate(&end));
  for (int i = 0; i < 3; ++i) body();
  for (float& value : microseconds) {
    check_cuda(cudaEventRecord(begin));
    body();
    check_cuda(cudaEventRecord(end));
    check_cuda(cudaEventSynchronize(end));
    check_cuda(cudaEventElapsedTime(&value, begin, end));
    value *= 1000;
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::ranges::sort(microseconds);
  return microseconds[microseconds.size() / 2];
}

// Of a program that ends in what `run` returns, or says its error.
template <typename Run>
int exit_code_of(const char* program, const Run& run) {
  try {
    return run();
  } catch (const Error& error) {
    std::fprintf(stderr, "%s: %s\n", program, error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace thimble
