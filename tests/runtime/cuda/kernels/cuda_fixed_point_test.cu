// cuda_fixed_point_test.cu: a device computes the same Q1.15 and Q1.31 codes and round trips as the host, bit for bit;
// its kernels' rounding in float32 arithmetic too.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_numeric.cuh"
#include "runtime/tensor/rounding.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_fixed_point_test {
namespace {

struct Converted {
  int32_t q131;
  float simulated_q115, simulated_q131, from_code;
  int32_t q115;
};

__host__ __device__ Converted convert(float x, uint32_t bits) {
  return {float_to_q131(x), simulate_q115(x), simulate_q131(x), float_from_q131(static_cast<int32_t>(bits)),
          float_to_q115(x)};
}

__global__ void convert_kernel(const uint32_t* bits, int64_t count, Converted* out) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = convert(__uint_as_float(bits[i]), bits[i]);
}

__global__ void round_kernel(const float* x, int64_t count, Rounding rounding, float* out) {
  int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = FixedPoint(rounding)(x[i]);
}

using CudaFixedPoint = CudaTest;

TEST_F(CudaFixedPoint, ArithmeticAloneRoundsAlike) {
  std::vector<float> values = {0.0f, -0.0f, INFINITY, -INFINITY, 0.999f, -0.999f, 1.0f, 3e38f, -3e38f, 1e-45f};
  for (int32_t code = -32768; code < 32768;
       ++code)  // around ties of Q1.15, and of Q1.31 where it is coarser than float
    for (float nudge : {0.0f, 0x1p-33f, -0x1p-33f, 0x1p-32f, -0x1p-32f})
      for (float scale : {0x1p-15f, 0x1p-24f}) values.push_back((static_cast<float>(code) + 0.5f) * scale + nudge);
  std::mt19937 random(13);
  while (values.size() < 4'000'000) {
    const auto bits = static_cast<uint32_t>(random());
    const auto value = std::bit_cast<float>(bits);
    if (value == value) values.push_back(value);
    values.push_back(std::ldexp(static_cast<float>(static_cast<int32_t>(bits)), -31 - static_cast<int>(bits % 20)));
  }
  const DeviceArray<float> x{std::span<const float>(values)}, rounded(x.count());
  for (Format format : {Format::kQ115, Format::kQ131Q115}) {
    launch_kernel(round_kernel, {dim3(static_cast<unsigned>(divide_up(x.count(), 256))), 256}, nullptr,
                  static_cast<const float*>(x.data()), x.count(), Rounding{format}, rounded.data());
    std::vector<float> found(values.size());
    check_cuda(cudaMemcpy(found.data(), rounded.data(), rounded.bytes(), cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(rounded_to(format, values[i])))
          << std::hexfloat << values[i] << " became " << found[i];
  }
}

TEST_F(CudaFixedPoint, SameBitsAsTheHost) {
  std::vector<uint32_t> bits = {0,          0x80000000, 1,          0x80000001, 0x007fffff, 0x00800000, 0x7f800000,
                                0xff800000, 0x7fc00000, 0x7f800001, 0x3f7fbe77, 0x3f7fbe78, 0x3f800000, 0xbf800000};
  for (int32_t code = -32768; code < 32768; ++code) {
    bits.push_back(std::bit_cast<uint32_t>(float_from_q115(static_cast<int16_t>(code))));
    bits.push_back(std::bit_cast<uint32_t>((static_cast<float>(code) + 0.5f) * 0x1p-15f));
  }
  std::mt19937 random(11);
  while (bits.size() < 10'000'000) bits.push_back(static_cast<uint32_t>(random()));
  DeviceArray<uint32_t> device_bits{std::span<const uint32_t>(bits)};
  DeviceArray<Converted> converted(static_cast<int64_t>(bits.size()));
  auto blocks = static_cast<unsigned>(divide_up(device_bits.count(), 256));
  launch_kernel(convert_kernel, {dim3(blocks), 256}, nullptr, device_bits.data(), device_bits.count(),
                converted.data());
  std::vector<Converted> found(bits.size());
  check_cuda(cudaMemcpy(found.data(), converted.data(), converted.bytes(), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < bits.size(); ++i) {
    Converted expected = convert(std::bit_cast<float>(bits[i]), bits[i]);
    ASSERT_EQ(std::memcmp(&found[i], &expected, sizeof(Converted)), 0) << std::hex << bits[i];
  }
}

}  // namespace
}  // namespace thimble::cuda_fixed_point_test
