// forward_golden_test.cpp: the CPU's passes against golden per-token losses and logits of real checkpoints.
#include <gtest/gtest.h>

#include <cmath>

#include "quantizer/checkpoints/model_source.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/cpu_pass.h"
#include "runtime/tensor/rounding.h"
#include "tests/quantizer/pipeline/golden_files.h"

namespace thimble::forward_golden_test {
namespace {

class ForwardGolden : public ::testing::Test {
 protected:
  // Null, and the test skipped, where the checkpoint is not here.
  static std::shared_ptr<const Weights> load(const std::string& folder) {
    if (!file_exists(shared_data(folder + "/golden.safetensors"))) return nullptr;
    return OpenedCheckpoint(shared_data(folder + "/model.safetensors"), "").weights();
  }
};

struct Differences {
  double largest = 0, mean = 0;
};

Differences nll_differences(std::shared_ptr<const Weights> weights, const std::string& folder,
                            const std::string& tokens_name, int64_t context, int64_t windows) {
  GoldenFile golden(shared_data(folder + "/golden.safetensors"));
  const std::vector<Token> tokens = golden.tokens(tokens_name);
  const std::vector<float> expected = golden.floats("nll_fp32");
  const auto scorer = make_cpu_scorer(std::move(weights), Numerics::kFp32, context);
  const auto length = static_cast<size_t>(context);
  Differences found;
  for (size_t w = 0; w < static_cast<size_t>(windows); ++w) {
    const ScoreWindow window{std::span(tokens).subspan(w * length, length),
                             std::span(tokens).subspan(w * length + 1, length)};
    std::vector<float> nll(length);
    scorer->score({&window, 1}, nll);
    for (size_t p = 0; p < length; ++p) {
      double difference = std::abs(double{nll[p]} - double{expected[w * length + p]});
      found.largest = std::max(found.largest, difference);
      found.mean += difference / static_cast<double>(windows * context);
    }
  }
  return found;
}

TEST_F(ForwardGolden, Golf30mLossesMatch) {
  const auto weights = load("golf30m");
  if (!weights) GTEST_SKIP() << "golden checkpoints are not here";
  Differences found = nll_differences(weights, "golf30m", "golden_tokens", 2048, 8);
  EXPECT_LE(found.largest, 2e-4);
  EXPECT_LE(found.mean, 2e-5);
}

TEST_F(ForwardGolden, TinyLossesMatch) {
  const auto weights = load("tiny");
  if (!weights) GTEST_SKIP() << "golden checkpoints are not here";
  Differences found = nll_differences(weights, "tiny", "tokens", 1024, 4);
  EXPECT_LE(found.largest, 2e-4);
  EXPECT_LE(found.mean, 2e-5);
}

TEST_F(ForwardGolden, Gpt2LossesMatch) {
  const auto weights = load("gpt2-small");
  if (!weights) GTEST_SKIP() << "golden checkpoints are not here";
  Differences found = nll_differences(weights, "gpt2-small", "tokens", 512, 4);
  RecordProperty("largest", std::to_string(found.largest));
  RecordProperty("mean", std::to_string(found.mean));
  EXPECT_LE(found.largest, 5e-4);
  EXPECT_LE(found.mean, 5e-5);
}

// The same model with rotary frequencies in bf16.
std::shared_ptr<const Weights> with_rounded_frequencies(const Weights& weights) {
  auto network = std::make_shared<Network>(*weights.network);
  for (RotaryRule& rule : network->rotaries)
    rule.frequencies = [exact = rule.frequencies](int64_t context) {
      std::vector<double> frequencies = exact(context);
      for (double& frequency : frequencies)
        frequency = double{rounded_to(Format::kBf16, static_cast<float>(frequency))};
      return frequencies;
    };
  auto rounded = std::make_shared<Weights>(weights);
  rounded->network = std::move(network);
  return rounded;
}

// These values come from a module that was cast to bf16 and back, the buffer of its rotary frequencies included. What
// transformers loads from the folder has them in float32, and so has the program: its losses differ by that rounding,
// more the later the position.
TEST_F(ForwardGolden, LlamaLossesMatch) {
  const auto weights = load("llama-small");
  if (!weights) GTEST_SKIP() << "golden checkpoints are not here";
  const Differences found = nll_differences(with_rounded_frequencies(*weights), "llama-small", "tokens", 512, 4);
  EXPECT_LE(found.largest, 5e-4);
  EXPECT_LE(found.mean, 5e-5);
  const Differences exact = nll_differences(weights, "llama-small", "tokens", 512, 4);
  EXPECT_LE(exact.largest, 0.05);
  EXPECT_LE(exact.mean, 2e-3);
}

TEST_F(ForwardGolden, Golf30mLogitsMatch) {
  const auto weights = load("golf30m");
  if (!weights) GTEST_SKIP() << "golden checkpoints are not here";
  GoldenFile golden(shared_data("golf30m/golden.safetensors"));
  const std::vector<Token> tokens = golden.tokens("golden_tokens");
  CpuPass pass(*weights, 2048);
  const int64_t vocabulary = weights->network->vocabulary();
  Matrix logits(2048, vocabulary);
  pass.logits(pass.run(window_batch(std::span(tokens).first(2048))), logits);
  double largest = 0;
  for (const auto& [name, first_row] : {std::pair{"logits_fp32_w0_first16", 0}, {"logits_fp32_w0_last16", 2048 - 16}}) {
    std::vector<float> expected = golden.floats(name);
    for (int64_t r = 0; r < 16; ++r)
      for (int64_t v = 0; v < vocabulary; ++v)
        largest = std::max(largest, std::abs(double{logits(first_row + r, v)} -
                                             double{expected[static_cast<size_t>(r * vocabulary + v)]}));
  }
  EXPECT_LE(largest, 5e-4);
}

// The original rounds elsewhere within operations, so that single losses differ; their mean hardly does.
TEST_F(ForwardGolden, Golf30mMeanLossInBf16IsTheOriginals) {
  const auto weights = load("golf30m");
  if (!weights) GTEST_SKIP() << "golden checkpoints are not here";
  GoldenFile golden(shared_data("golf30m/golden.safetensors"));
  const std::vector<Token> tokens = golden.tokens("golden_tokens");
  const std::vector<float> expected = golden.floats("nll_bf16");
  const ScoreWindow window{std::span(tokens).first(2048), std::span(tokens).subspan(1, 2048)};
  std::vector<float> nll(2048);
  make_cpu_scorer(weights, Numerics::kBf16, 2048)->score({&window, 1}, nll);
  double found_mean = 0, mean = 0;
  for (size_t p = 0; p < 2048; ++p) {
    found_mean += double{nll[p]} / 2048;
    mean += double{expected[p]} / 2048;
  }
  EXPECT_NEAR(found_mean, mean, 0.005);
}

}  // namespace
}  // namespace thimble::forward_golden_test
