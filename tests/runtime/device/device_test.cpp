// device_test.cpp: what --device and --numerics name here, and how they are refused.
#include "runtime/device/device.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/error.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

bool has_cuda() { return !cuda_device_names().empty(); }

TEST(Device, TheCpuIsNamedByItsInstructionSet) {
  for (const char* numerics : {"auto", "fp32"}) {
    Device device = open_device("cpu", numerics);
    EXPECT_FALSE(device.is_cuda);
    EXPECT_TRUE(device.ordinals.empty());
    EXPECT_EQ(device.numerics, Numerics::kFp32);
    EXPECT_EQ(device.arithmetic(), cpu_instruction_set());
    EXPECT_EQ(device.name(), "cpu (" + std::string(cpu_instruction_set()) + ")");
  }
}

TEST(Device, AutoIsTheCpuWhereThereIsNoOther) {
  if (has_cuda()) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_FALSE(open_device("auto", "auto").is_cuda);
  EXPECT_FALSE(open_device("auto", "fp32").is_cuda);
}

TEST(Device, MissingDevicesAreDeviceErrors) {
  if (has_cuda()) GTEST_SKIP() << "this machine has a CUDA device";
  for (const char* text : {"cuda", "cuda:0", "cuda:all", "cuda:99999999999999999999"})
    expect_error<DeviceError>([&] { open_device(text, "auto"); }, {std::string("--device ") + text, "--device cpu"});
}

TEST(Device, CudaOrdinals) {
  if (!has_cuda()) GTEST_SKIP() << "this machine has no CUDA device";
  auto count = cuda_device_names().size();
  for (const char* text : {"auto", "cuda", "cuda:0"}) EXPECT_EQ(open_device(text, "auto").ordinals, std::vector{0});
  EXPECT_EQ(open_device("cuda", "auto").numerics, Numerics::kBf16);
  EXPECT_EQ(open_device("cuda", "fp32").numerics, Numerics::kFp32);
  EXPECT_EQ(open_device("cuda:all", "auto").ordinals.size(), count);
  std::string beyond = "cuda:" + std::to_string(count);
  expect_error<DeviceError>([&] { open_device(beyond, "auto"); }, {beyond, "0 to " + std::to_string(count - 1)});
  expect_error<DeviceError>([] { open_device("cuda:99999999999999999999", "auto"); }, {"cuda:99999999999999999999"});
}

// Scores and softmax weights stay in registers there, where nothing can round them to Q1.15.
TEST(Device, NoSf16ModeHasFusedAttention) {
  for (Numerics numerics : kAllNumerics) {
    Device device;
    device.is_cuda = true;
    device.ordinals = {0};
    device.numerics = numerics;
    EXPECT_EQ(has_fused_forward(device), numerics == Numerics::kFp32 || numerics == Numerics::kBf16);
    EXPECT_FALSE(is_sf16(numerics) && has_fused_forward(device)) << numerics_name(numerics);
    EXPECT_FALSE(has_fused_forward(Device{})) << "the CPU";
  }
}

TEST(Device, TextsOfAnotherFormAreUsageErrors) {
  for (const char* text : {"", "gpu", "CPU", "cpu:0", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:ALL", " cuda"}) {
    EXPECT_FALSE(is_device_text(text));
    expect_error<UsageError>([&] { open_device(text, "auto"); }, {"--device", "cuda:all"});
  }
  for (const char* text : {"", "q115", "BF16", "float32", "sf16-", "nvfp4-q115"}) {
    EXPECT_FALSE(is_numerics_text(text));
    expect_error<UsageError>([&] { open_device("cpu", text); },
                             {"--numerics", "auto, fp32, bf16, fp16, sf16, sf16-q115, sf16-legacy", "nvfp4"});
  }
}

TEST(Device, TheCpuComputesInEveryMode) {
  const std::string isa(cpu_instruction_set());
  std::set<std::string> arithmetics;
  for (Numerics numerics : kAllNumerics) {
    const std::string name(numerics_name(numerics));
    EXPECT_TRUE(is_numerics_text(name));
    EXPECT_NE(std::string(kNumericsTexts).find(name), std::string::npos) << name;
    const Device device = open_device("cpu", name);
    EXPECT_EQ(device.numerics, numerics);
    EXPECT_FALSE(has_fused_forward(device));
    arithmetics.insert(device.arithmetic());
    if (numerics == Numerics::kFp32) continue;
    EXPECT_EQ(device.arithmetic(), isa + " " + name);
    EXPECT_EQ(device.name(), "cpu (" + isa + ", " + name + ")");
  }
  EXPECT_EQ(arithmetics.size(), kAllNumerics.size());
}

// Fused kernels keep scores to themselves, so that a mode that rounds them must not get there.
TEST(Device, OnlyFp32AndBf16AreFused) {
  Device device;
  device.is_cuda = true;
  for (Numerics numerics : kAllNumerics) {
    device.numerics = numerics;
    EXPECT_EQ(has_fused_forward(device), numerics == Numerics::kFp32 || numerics == Numerics::kBf16);
  }
}

TEST(Device, MakesTheCpusLanguageModel) {
  Model model = random_golf_model(small_golf_config());
  std::unique_ptr<LanguageModel> made = make_language_model(model, open_device("cpu", "auto"), 17);
  EXPECT_EQ(made->context(), 17);
  EXPECT_EQ(made->vocab_size(), model.config.vocab_size);
}

}  // namespace
}  // namespace thimble
