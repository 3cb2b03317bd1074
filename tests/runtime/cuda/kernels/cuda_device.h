// cuda_device.h: a CUDA device for a test, its memory filled with rubbish beforehand.
#pragma once

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "runtime/cuda/kernels/cuda_devices.h"

namespace thimble {

// Skips its tests where there is no device.
class CudaTest : public ::testing::Test {
 protected:
  // What is allocated later is likely to be made of this memory: bytes that no kernel wrote then stand out, as NaN or
  // as codes and indices out of range.
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
    constexpr size_t kBytes = size_t{1} << 30;
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, kBytes), cudaSuccess);
    ASSERT_EQ(cudaMemset(memory, 0xff, kBytes), cudaSuccess);
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
  }
};

}  // namespace thimble
