// cuda_kept_memory_test.cu: what is freed comes back for the same size, and never takes more than was in use.
#include <gtest/gtest.h>

#include "runtime/cuda/kernels/cuda_kept_memory.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_kept_memory_test {
namespace {

constexpr size_t kMegabyte = size_t{1} << 20;

class CudaKeptMemory : public CudaTest {
 protected:
  // With a limit only what was in use at once is kept.
  void keep_what_was_used() { memory_.keep({0, uint64_t{1} << 40}); }
  uint64_t kept_megabytes() { return memory_.kept_bytes(0) / kMegabyte; }

  KeptMemory memory_;
};

TEST_F(CudaKeptMemory, KeepsNothingUntilAsked) {
  memory_.free(nullptr);
  memory_.free(memory_.allocate(8 * kMegabyte));
  EXPECT_EQ(kept_megabytes(), 0u);
}

TEST_F(CudaKeptMemory, GivesTheSameSizeAgain) {
  keep_what_was_used();
  void* const first = memory_.allocate(8 * kMegabyte - 1000);  // in whole pages
  EXPECT_EQ(kept_megabytes(), 0u);
  memory_.free(first);
  EXPECT_EQ(kept_megabytes(), 8u);
  EXPECT_EQ(memory_.allocate(8 * kMegabyte), first);
  EXPECT_EQ(kept_megabytes(), 0u);
  void* const second = memory_.allocate(8 * kMegabyte);
  EXPECT_NE(second, first);
  memory_.free(first);
  memory_.free(second);
  EXPECT_EQ(kept_megabytes(), 16u);
}

TEST_F(CudaKeptMemory, NeverTakesMoreThanWasInUse) {
  keep_what_was_used();
  void* const small = memory_.allocate(8 * kMegabyte);
  void* const large = memory_.allocate(16 * kMegabyte);
  memory_.free(small);
  memory_.free(large);
  EXPECT_EQ(kept_megabytes(), 24u);
  void* const other = memory_.allocate(12 * kMegabyte);  // in the place of the large one
  EXPECT_EQ(kept_megabytes(), 8u);
  memory_.free(other);
  EXPECT_EQ(kept_megabytes(), 20u);
  memory_.free(memory_.allocate(30 * kMegabyte));
  EXPECT_EQ(kept_megabytes(), 30u);
}

TEST_F(CudaKeptMemory, KeepsAShareOfTheDeviceWithoutALimit) {
  memory_.keep(0);
  for (size_t megabytes : {8, 12, 16}) memory_.free(memory_.allocate(megabytes * kMegabyte));
  EXPECT_EQ(kept_megabytes(), 36u);
}

TEST_F(CudaKeptMemory, LeavesPagesThatArraysShareToTheDriver) {
  keep_what_was_used();
  void* const data = memory_.allocate(1000);
  EXPECT_NE(data, nullptr);
  memory_.free(data);
  EXPECT_EQ(memory_.kept_bytes(0), 0u);
}

TEST_F(CudaKeptMemory, GivesAllBackBeforeThereIsNotEnough) {
  memory_.keep(0);
  memory_.free(memory_.allocate(8 * kMegabyte));
  EXPECT_EQ(memory_.allocate(size_t{1} << 44), nullptr);
  EXPECT_EQ(kept_megabytes(), 0u);
  void* const data = memory_.allocate(8 * kMegabyte);
  EXPECT_NE(data, nullptr);
  memory_.free(data);
}

}  // namespace
}  // namespace thimble::cuda_kept_memory_test
