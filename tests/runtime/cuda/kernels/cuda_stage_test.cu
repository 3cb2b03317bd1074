// cuda_stage_test.cu: rows staged in NVFP4 on a device are the CPU's, bit for bit: narrow and wide ones, padded heads,
// rows that begin anywhere, in place or not.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "runtime/cpu/cpu_rows.h"
#include "runtime/cuda/kernels/cuda_rows.cuh"
#include "runtime/tensor/host_device.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_stage_test {
namespace {

using CudaStage = CudaTest;

template <typename T>
T stored(float value) {
  if constexpr (std::is_same_v<T, float>)
    return value;
  else
    return __float2bfloat16_rn(value);
}
float value_of(float stored) { return stored; }
float value_of(__nv_bfloat16 stored) { return __bfloat162float(stored); }

template <typename T>
void expect_the_cpus(const HeadColumns& columns, Format storage, bool in_place) {
  constexpr int64_t kRows = 11;
  const int64_t stride = round_up(int64_t{columns.heads} * columns.padded, 8), size = kRows * stride;
  std::mt19937 random(static_cast<uint32_t>(stride));
  std::normal_distribution<float> normal;
  std::vector<T> host(static_cast<size_t>(size), stored<T>(7.0f));
  Matrix x(kRows, columns.count()), expected(kRows, columns.count());
  for (int64_t r = 0; r < kRows; ++r)
    for (int k = 0; k < columns.count(); ++k) {
      const T value = stored<T>(r == 3 ? 0.0f : std::ldexp(normal(random), static_cast<int>(random() % 7)));
      host[static_cast<size_t>(r * stride + columns.place(k))] = value;
      x(r, k) = value_of(value);
    }
  stage_rows_nvfp4(x, {Format::kFp32, storage}, expected);
  DeviceArray<T> in{std::span<const T>(host)}, out{std::span<const T>(host)};
  DeviceArray<T>& to = in_place ? in : out;
  launch_stage_nvfp4<T>(in.data(), stride, kRows, columns, RowNorm{}, to.data(), nullptr);
  std::vector<T> found(host.size());
  check_cuda(cudaMemcpy(found.data(), to.data(), to.bytes(), cudaMemcpyDeviceToHost));
  for (int64_t r = 0; r < kRows; ++r)
    for (int k = 0; k < columns.count(); ++k)
      ASSERT_EQ(value_of(found[static_cast<size_t>(r * stride + columns.place(k))]), expected(r, k))
          << "row " << r << " column " << k;
}

TEST_F(CudaStage, IsTheCpus) {
  const HeadColumns cases[] = {{1, 16, 16}, {1, 512, 512}, {1, 513, 520}, {1, 1792, 1792}, {1, 5000, 5000},
                               {8, 48, 64}, {3, 20, 32},   {1, 100, 104}, {1, 7, 8},       {2, 128, 128}};
  for (const HeadColumns& columns : cases)
    for (bool in_place : {false, true}) {
      SCOPED_TRACE(std::to_string(columns.heads) + " x " + std::to_string(columns.head));
      expect_the_cpus<float>(columns, Format::kFp32, in_place);
      expect_the_cpus<__nv_bfloat16>(columns, Format::kBf16, in_place);
    }
}

// A view's rows begin at any element; what they are staged to is aligned.
TEST_F(CudaStage, ReadsViews) {
  constexpr int64_t kRows = 5, kStride = 72;
  std::vector<__nv_bfloat16> host(kRows * kStride + 8);
  Matrix x(kRows, 64), expected(kRows, 64);
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t k = 0; k < 64; ++k) {
      host[static_cast<size_t>(r * kStride + 3 + k)] = __float2bfloat16_rn(std::sin(static_cast<float>(64 * r + k)));
      x(r, k) = value_of(host[static_cast<size_t>(r * kStride + 3 + k)]);
    }
  stage_rows_nvfp4(x, {Format::kFp32, Format::kBf16}, expected);
  const DeviceArray<__nv_bfloat16> in{std::span<const __nv_bfloat16>(host)};
  DeviceArray<__nv_bfloat16> out(kRows * kStride);
  out.fill_zero();
  launch_stage_nvfp4<__nv_bfloat16>(in.data() + 3, kStride, kRows, {1, 64, 64}, RowNorm{}, out.data(), nullptr);
  std::vector<__nv_bfloat16> found(static_cast<size_t>(out.count()));
  check_cuda(cudaMemcpy(found.data(), out.data(), out.bytes(), cudaMemcpyDeviceToHost));
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t k = 0; k < 64; ++k)
      ASSERT_EQ(value_of(found[static_cast<size_t>(r * kStride + k)]), expected(r, k)) << r << " " << k;
}

}  // namespace
}  // namespace thimble::cuda_stage_test
