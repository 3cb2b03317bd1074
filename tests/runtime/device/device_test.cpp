// device_test.cpp: what --device and --numerics name here, and how they are refused.
#include "runtime/device/device.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstdio>
#include <set>

#include "runtime/base/error.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "runtime/device/models.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble::device_test {
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

// In processes of their own, whose driver nobody has called.
TEST(DeviceDeathTest, PassesAskForFewConnectionsUnlessTheEnvironmentSaysHowMany) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr const char* kVariable = "CUDA_DEVICE_MAX_CONNECTIONS";
  const auto say_connections = [=](DeviceWork work) {
    warm_up("cuda", work).join();
    const char* connections = ::getenv(kVariable);
    std::fprintf(stderr, "connections: %s.", connections ? connections : "none");
    std::exit(0);
  };
  const auto expect = [&](const char* before, DeviceWork work, const std::string& after) {
    before ? ::setenv(kVariable, before, /*overwrite=*/1) : ::unsetenv(kVariable);
    EXPECT_EXIT(say_connections(work), ::testing::ExitedWithCode(0), "connections: " + after + "\\.");
  };
  const bool is_cuda_build = !cuda_runtime_version().empty();
  expect(nullptr, DeviceWork::kPasses, is_cuda_build ? "2" : "none");
  expect(nullptr, DeviceWork::kSolving, "none");
  expect("7", DeviceWork::kPasses, "7");
  ::unsetenv(kVariable);
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
  std::set<std::string> arithmetics;
  for (Numerics numerics : kAllNumerics) {
    const std::string name(numerics_name(numerics));
    EXPECT_TRUE(is_numerics_text(name));
    EXPECT_NE(std::string(kNumericsTexts).find(name), std::string::npos) << name;
    const Device device = open_device("cpu", name);
    EXPECT_EQ(device.numerics, numerics);
    const std::string isa(cpu_instruction_set(numeric_policy(numerics).products));
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

// On the CPU, factors of products are all that a mode rounds there, and bf16 the only mode that does.
TEST(Device, DivergencesOfTheCpuRoundNothingButFactors) {
  const auto teacher = random_golf_weights(small_golf_config(), 1),
             student = random_golf_weights(small_golf_config(), 2);
  constexpr int64_t kLength = kMostFewRows + 20;
  const TokenSequences sequences{2, kLength, random_tokens(2 * kLength, 29)};
  const DivergenceOptions options{.summed = student->network->matrix_names()};
  SilentProgress silent;
  struct Found {
    double divergence = 0;
    MatrixGradients gradients;
  };
  auto find = [&](const std::string& numerics) {
    Found found;
    const auto pass = make_divergence_pass(teacher, student, sequences, open_device("cpu", numerics), silent, options);
    found.divergence = pass->gradients(0, 2, &found.gradients).divergence;
    return found;
  };
  const Found exact = find("fp32"), rounded = find("bf16");
  EXPECT_EQ(find("fp16").divergence, exact.divergence);
  EXPECT_GT(exact.divergence, 0);
  EXPECT_NEAR(rounded.divergence, exact.divergence, 0.01 * exact.divergence);
  EXPECT_EQ(rounded.divergence == exact.divergence, !cpu_instruction_set(ProductArithmetic::kBf16).ends_with("bf16"));
  for (const auto& [name, gradient] : exact.gradients) {
    const Matrix& other = rounded.gradients.at(name);
    double error = 0, all = 0;
    for (size_t i = 0; i < gradient.values().size(); ++i) {
      error += std::pow(gradient.values()[i] - other.values()[i], 2);
      all += std::pow(gradient.values()[i], 2);
    }
    EXPECT_GT(all, 0) << name;
    EXPECT_LT(std::sqrt(error / all), 0.05) << name;
  }
}

}  // namespace
}  // namespace thimble::device_test
