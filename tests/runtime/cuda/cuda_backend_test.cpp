// cuda_backend_test.cpp: the plain Backend on a device against the CPU's: its rounding bit for bit, its operations in
// every order that a forward pass asks for, and both families in every numeric mode.
#include "runtime/cuda/cuda_backend.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "runtime/cpu/backend_matrix.h"
#include "runtime/cpu/numeric_backend.h"
#include "runtime/families/any_model.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {
namespace {

constexpr int64_t kWindow = 33;

class CudaBackendTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) cuda_ = make_cuda_backend(0);
  }
  // All floats whose rounding may be special, and random bits; no NaN.
  static std::vector<float> bit_patterns(size_t count) {
    std::vector<float> values;
    std::mt19937 random(5);
    for (uint32_t high = 0; high < 65536; ++high)
      for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu, 0x0fffu, 0x1000u, 0x1001u, 0x3000u})
        values.push_back(std::bit_cast<float>(high << 16 | low));
    while (values.size() < count) values.push_back(std::bit_cast<float>(static_cast<uint32_t>(random())));
    values.resize(count);
    for (float& value : values)
      if (std::isnan(value)) value = 1;
    return values;
  }

  std::unique_ptr<Backend> cpu_ = make_cpu_backend(), cuda_;
};

TEST_F(CudaBackendTest, RoundingIsTheHostsBitForBit) {
  constexpr int64_t kRows = 1000, kColumns = 2000;
  const std::vector<float> values = bit_patterns(kRows * kColumns);
  for (Format value : {Format::kFp32, Format::kBf16, Format::kFp16, Format::kQ115, Format::kQ131Q115})
    for (Format storage : {Format::kFp32, Format::kBf16, Format::kFp16}) {
      BackendMatrix expected, found;
      expected.resize(*cpu_, kRows, kColumns);
      found.resize(*cuda_, kRows, kColumns);
      std::ranges::copy(values, expected.values().begin());
      std::ranges::copy(values, found.values().begin());
      cpu_->round({value, storage}, expected);
      cuda_->round({value, storage}, found);
      cuda_->finish();
      for (size_t i = 0; i < values.size(); ++i)
        ASSERT_EQ(std::bit_cast<uint32_t>(found.values()[i]), std::bit_cast<uint32_t>(expected.values()[i]))
            << values[i] << " to " << static_cast<int>(value) << ", " << static_cast<int>(storage);
    }
}

// Rows of the identity give back what the input was staged to.
TEST_F(CudaBackendTest, Nvfp4InputsAreStagedAsOnTheHost) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (int64_t columns : {1, 15, 16, 17, 100, 512, 1792}) {
    constexpr int64_t kRows = 200;
    Nvfp4Codes identity = nvfp4_zeros(columns, columns);
    std::ranges::fill(identity.block_scales, ue4m3_from_float(1));
    for (int64_t i = 0; i < columns; ++i) set_nvfp4_code(identity, nvfp4_row_bytes(columns), i, i, e2m1_from_float(1));
    const Matrix values = dequantize_nvfp4(identity, columns, columns);
    BackendMatrix x, expected, found;
    x.resize(*cuda_, kRows, columns);
    expected.resize(*cpu_, kRows, columns);
    found.resize(*cuda_, kRows, columns);
    for (size_t i = 0; i < x.values().size(); ++i)
      x.values()[i] = normal(random) * std::ldexp(1.0f, static_cast<int>(random() % 12) - 6);
    for (int64_t c = 0; c < columns; ++c) x.view().row(3)[c] = 0;
    cpu_->linear_nvfp4(x, {values, &identity, 0}, expected);
    cuda_->linear_nvfp4(x, {values, &identity, 0}, found);
    cuda_->finish();
    for (size_t i = 0; i < x.values().size(); ++i)
      ASSERT_EQ(found.values()[i], expected.values()[i]) << "element " << i << " of rows of " << columns;
  }
}

struct Compared {
  double equal = 0;    // share of the elements; the softcap alone, in fp32, may differ in its last bits
  double largest = 0;  // difference, relative to the largest element
};

Compared compare(ConstMatrixView found, ConstMatrixView expected) {
  Compared result;
  double largest = 0;
  for (int64_t r = 0; r < expected.rows; ++r)
    for (int64_t c = 0; c < expected.cols; ++c) {
      const double one = found.row(r)[c], other = expected.row(r)[c];
      EXPECT_TRUE(std::isfinite(one));
      largest = std::max(largest, std::abs(other));
      result.largest = std::max(result.largest, std::abs(one - other));
      result.equal += std::abs(one - other) <= 1e-5 * (1 + std::abs(other));
    }
  result.largest /= largest;
  result.equal /= static_cast<double>(expected.rows * expected.cols);
  return result;
}

// What float32 sums of another order may do: nothing but their own rounding in fp32. A rounded value may fall to the
// other side of a tie, one step away, and what is made of it moves along: few elements in Q1.15, where steps are small
// beside 1; as much as a few steps in fp16, bf16 and NVFP4.
void expect_close(Numerics numerics, const Compared& found) {
  SCOPED_TRACE(numerics_name(numerics));
  testing::Test::RecordProperty(std::string(numerics_name(numerics)) + "_equal", std::to_string(found.equal));
  testing::Test::RecordProperty(std::string(numerics_name(numerics)) + "_largest", std::to_string(found.largest));
  switch (numerics) {
    case Numerics::kFp32: EXPECT_LE(found.largest, 1e-4); break;
    case Numerics::kBf16: EXPECT_LE(found.largest, 0.05); break;
    case Numerics::kFp16: EXPECT_LE(found.largest, 0.01); break;
    case Numerics::kNvfp4: EXPECT_LE(found.largest, 0.2); break;
    default: EXPECT_GE(found.equal, 0.95); EXPECT_LE(found.largest, 0.05);
  }
}

AnyModel model_of(bool is_gpt2) {
  if (is_gpt2) return random_gpt2_model(small_gpt2_config(), 3);
  return random_golf_model(small_golf_config());
}

std::unique_ptr<WindowScorer> scorer_of(const AnyModel& model, Backend& backend) {
  return make_window_scorer(model, backend, kWindow);
}

TEST_F(CudaBackendTest, BothFamiliesInEveryMode) {
  for (bool is_gpt2 : {false, true})
    for (Numerics numerics : kAllNumerics) {
      SCOPED_TRACE(is_gpt2 ? "GPT-2" : "golf-gpt");
      const AnyModel model = rounded_model(model_of(is_gpt2), numerics);
      const std::vector<uint16_t> tokens = random_tokens(kWindow, vocab_size(config_of(model)), 4);
      const NumericPolicy policy = numeric_policy(numerics);
      std::unique_ptr<Backend> cpu = make_numeric_backend(make_cpu_backend(), policy, nvfp4_weights(model));
      std::unique_ptr<Backend> cuda = make_numeric_backend(make_cuda_backend(0), policy, nvfp4_weights(model));
      std::unique_ptr<WindowScorer> expected = scorer_of(model, *cpu), found = scorer_of(model, *cuda);
      for (int64_t first : {int64_t{0}, kWindow / 2, kWindow - 1})
        expect_close(numerics, compare(found->logits(tokens, first), expected->logits(tokens, first)));
    }
}

struct Keeper final : LinearObserver {
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    Matrix copy(input.rows, input.cols);
    for (int64_t r = 0; r < input.rows; ++r) std::copy(input.row(r), input.row(r) + input.cols, copy.row(r));
    inputs[weights[0]] = std::move(copy);
  }
  std::map<std::string, Matrix> inputs;
};

TEST_F(CudaBackendTest, ObserversSeeTheSameInputs) {
  for (bool is_gpt2 : {false, true}) {
    const AnyModel model = model_of(is_gpt2);
    const std::vector<uint16_t> tokens = random_tokens(kWindow, vocab_size(config_of(model)), 4);
    Keeper expected, found;
    scorer_of(model, *cpu_)->observe(tokens, expected);
    std::unique_ptr<Backend> cuda = make_cuda_backend(0);
    scorer_of(model, *cuda)->observe(tokens, found);
    ASSERT_EQ(found.inputs.size(), expected.inputs.size());
    for (const auto& [name, input] : expected.inputs)
      EXPECT_LE(compare(found.inputs.at(name), input).largest, 1e-4) << name;
  }
}

// Token by token through the cache, and a prompt before that: the text that the CPU writes at temperature 0.
TEST_F(CudaBackendTest, GeneratesTheSameText) {
  Device cpu, cuda;
  cuda.is_cuda = true;
  cuda.ordinals = {0};
  for (bool is_gpt2 : {false, true})
    for (Numerics numerics : {Numerics::kFp32, Numerics::kFp16}) {
      if (numerics == Numerics::kFp32 && !is_gpt2) continue;  // that is the fused kernels'
      cpu.numerics = cuda.numerics = numerics;
      const AnyModel model = model_of(is_gpt2);
      std::vector<std::vector<uint16_t>> texts;
      for (const Device& device : {cpu, cuda}) {
        std::vector<uint16_t>& text = texts.emplace_back();
        const std::vector<uint16_t> prompt = {3, 1, 4};
        make_language_model(model, device, kWindow)->generate_text(prompt, 12, 0, 1, [&](uint16_t token) {
          text.push_back(token);
          return true;
        });
      }
      EXPECT_EQ(texts[1], texts[0]) << numerics_name(numerics) << (is_gpt2 ? " GPT-2" : " golf-gpt");
    }
}

TEST_F(CudaBackendTest, CalibrationTextIsCausal) {
  Device cuda;
  cuda.is_cuda = true;
  cuda.ordinals = {0};
  cuda.numerics = Numerics::kFp16;
  for (bool is_gpt2 : {false, true}) {
    const AnyModel model = model_of(is_gpt2);
    SilentProgress silent;
    auto generate = [&](int64_t first, int64_t count) {
      return make_language_model(model, cuda, kWindow)
          ->generate_calibration({5, kWindow, 0.8, 7}, first, count, silent)
          .tokens;
    };
    const std::vector<uint16_t> all = generate(0, 5), part = generate(2, 2);
    EXPECT_TRUE(std::equal(part.begin(), part.end(), all.begin() + 2 * kWindow));
  }
}

TEST_F(CudaBackendTest, MemoryBeyondTheLimitIsRefused) {
  std::unique_ptr<Backend> limited = make_cuda_backend(CudaPlace(0, 4096));
  limited->allocate(1024).reset();
  std::shared_ptr<float> half = limited->allocate(512);
  expect_error<DeviceError>([&] { limited->allocate(513); }, {"4100 B", "4096 B"});
}

}  // namespace
}  // namespace thimble
