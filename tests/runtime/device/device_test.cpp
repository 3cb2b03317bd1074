// device_test.cpp: what --device and --numerics name here, and how they are refused.
#include "runtime/device/device.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/error.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/device/models.h"
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
    arithmetics.insert(device.arithmetic());
    if (numerics == Numerics::kFp32) continue;
    EXPECT_EQ(device.arithmetic(), isa + " " + name);
    EXPECT_EQ(device.name(), "cpu (" + isa + ", " + name + ")");
  }
  EXPECT_EQ(arithmetics.size(), kAllNumerics.size());
}

TEST(Device, ModelsOfTheCpuAreInItsNumerics) {
  const auto weights = random_golf_weights(small_golf_config());
  const std::vector<Token> tokens = random_tokens(12, 29);
  auto rows_of = [](Scorer& scorer, std::span<const Token> inputs) {
    Matrix rows(1, scorer.vocabulary());
    scorer.log_probabilities(inputs, rows);
    return rows;
  };
  for (const char* numerics : {"auto", "bf16"}) {
    const Device device = open_device("cpu", numerics);
    const std::unique_ptr<Scorer> made = make_scorer(weights, device, 17);
    EXPECT_EQ(made->context(), 17);
    EXPECT_EQ(made->vocabulary(), 29);
    const Matrix expected = rows_of(*make_cpu_scorer(weights, device.numerics, 17), tokens);
    EXPECT_TRUE(std::ranges::equal(rows_of(*made, tokens).values(), expected.values()));

    SilentProgress silent;
    const TextScript script = uniform_script(29, {.sequences = 3, .length = 17, .seed = 4});
    const TokenSequences sequences = make_generator(weights, device, 17, 3)->calibration(script, 0, 3, silent);
    EXPECT_EQ(sequences.tokens,
              make_cpu_generator(weights, device.numerics, 17)->calibration(script, 0, 3, silent).tokens);
  }
}

TEST(Device, DivergencesOfTheCpuAreInFloat32) {
  const auto teacher = random_golf_weights(small_golf_config(), 1),
             student = random_golf_weights(small_golf_config(), 2);
  const TokenSequences sequences{2, 9, random_tokens(18, 29)};
  SilentProgress silent;
  const auto made = make_divergence_pass(teacher, student, sequences, open_device("cpu", "bf16"), silent);
  const auto expected = make_cpu_divergence_pass(teacher, *student, sequences);
  EXPECT_EQ(made->divergence(0, 2), expected->divergence(0, 2));
  EXPECT_GT(made->divergence(0, 2), 0);
}

}  // namespace
}  // namespace thimble
