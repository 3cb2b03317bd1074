// memory_plan_test.cpp: how much of a device's memory may be planned with, and what plans say.
#include "runtime/base/memory_plan.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "runtime/base/error.h"
#include "runtime/base/json.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/base/temporary_folder.h"

namespace thimble::memory_plan_test {
namespace {

constexpr uint64_t kMuch = uint64_t{1} << 40;

TEST(MemoryPlan, UsableMemoryKeepsAReserve) {
  EXPECT_EQ(usable_memory(kMuch, kNoMemoryLimit), kMuch - kMuch / 20);
  EXPECT_EQ(usable_memory(uint64_t{1} << 30, kNoMemoryLimit), (uint64_t{1} << 30) - (uint64_t{128} << 20));
  EXPECT_EQ(usable_memory(1000, kNoMemoryLimit), 0u);
  EXPECT_EQ(usable_memory(kMuch, 12345), 12345u);
  EXPECT_EQ(usable_memory(uint64_t{1} << 28, kMuch), uint64_t{128} << 20);
}

TEST(MemoryPlan, TextAndJsonSayTheSame) {
  MemoryPlan plan{"scoring", "window", 16, 3, {{"weights", 1'234'567}, {"workspace", 1000}}};
  EXPECT_EQ(plan.bytes(), 1'235'567u);
  EXPECT_EQ(
      plan.text(),
      "scoring takes 1,235,567 B of device memory at most: 3 windows of 16 tokens at a time, weights 1,234,567 B, "
      "workspace 1,000 B");
  EXPECT_EQ(to_json(plan).dump(), R"({"batch":3,"bytes":1235567,"step":"scoring","unit":"windows of 16 tokens",)"
                                  R"("uses":{"weights":1234567,"workspace":1000}})");
}

TEST(MemoryPlan, OfTheHost) {
  const MemoryPlan plan{"solving", "layer", 0, 2, {{"factorisations", 5000}}, /*is_host=*/true};
  EXPECT_EQ(plan.text(), "solving takes 5,000 B of memory at most: 2 layers at a time, factorisations 5,000 B");
  EXPECT_EQ(to_json(plan).at("unit"), "layers");
}

// The least of a group and those above it, of version 2 and of version 1.
TEST(MemoryPlan, ControlGroupsLimitMemory) {
  const TemporaryFolder folder;
  const std::string root = folder.file("cgroup");
  auto write = [&](const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root + path).parent_path());
    std::ofstream(root + path) << text;
  };
  EXPECT_EQ(control_group_limit("0::/user/job\n", root), kNoMemoryLimit);
  write("/memory.max", "max\n");
  write("/user/memory.max", "8000000000\n");
  write("/user/job/memory.max", "9000000000\n");
  EXPECT_EQ(control_group_limit("0::/user/job\n", root), 8'000'000'000U);
  write("/user/job/memory.max", "7000000000\n");
  EXPECT_EQ(control_group_limit("0::/user/job\n", root), 7'000'000'000U);
  EXPECT_EQ(control_group_limit("0::/\n", root), kNoMemoryLimit);
  write("/memory/docker/memory.limit_in_bytes", "5000\n");
  EXPECT_EQ(control_group_limit("4:cpuset:/docker\n3:cpu,memory:/docker/1\n", root), 5000U);
  EXPECT_EQ(control_group_limit("4:cpuset:/docker\n", root), kNoMemoryLimit);
  for (const char* odd : {"", ":", "0:", "nonsense", "0::", "0::user"})
    EXPECT_EQ(control_group_limit(odd, folder.file("nothing")), kNoMemoryLimit) << odd;
}

TEST(MemoryPlan, TheHostHasMemory) {
  EXPECT_GT(host_memory_bytes(), uint64_t{1} << 28);
  EXPECT_LT(host_memory_bytes(), kNoMemoryLimit);
  EXPECT_EQ(working_memory(800, 300), 500U);
  EXPECT_EQ(working_memory(800, 750), 100U) << "an eighth at least";
  EXPECT_EQ(working_memory(800, kNoMemoryLimit / 2), 100U);
  EXPECT_EQ(working_memory(kNoMemoryLimit, 5), kNoMemoryLimit - 5);
}

// As many as fit, exactly: one byte less takes one less, and below one it is an error.
TEST(MemoryPlan, BatchesShrinkToFit) {
  auto uses = [](int64_t batch) {
    return std::vector<MemoryUse>{{"weights", 1000}, {"workspace", static_cast<uint64_t>(300 * batch)}};
  };
  auto fit = [&](int64_t most, uint64_t usable) {
    return fit_memory_plan("scoring", "window", 16, most, usable, uses);
  };
  for (int64_t most : {1, 2, 7, 66}) {
    EXPECT_EQ(fit(most, kMuch).batch, most);
    for (int64_t batch = 1; batch <= most; ++batch) {
      const auto bytes = static_cast<uint64_t>(1000 + 300 * batch);
      EXPECT_EQ(fit(most, bytes).batch, batch);
      EXPECT_EQ(fit(most, bytes).bytes(), bytes);
      if (batch > 1) {
        EXPECT_EQ(fit(most, bytes - 1).batch, batch - 1);
      }
    }
    expect_error<DeviceError>([&] { fit(most, 1299); },
                              {"out of device memory", "takes 1,300 B", "1 window of 16 tokens at a time",
                               "weights 1,000 B", "1,299 B may be used"});
  }
}

}  // namespace
}  // namespace thimble::memory_plan_test
