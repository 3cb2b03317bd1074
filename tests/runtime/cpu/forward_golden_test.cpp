// forward_golden_test.cpp: the CPU forward pass against golden per-token losses and logits of real checkpoints.
#include <gtest/gtest.h>

#include <cmath>

#include "quantizer/checkpoints/model_source.h"
#include "runtime/cpu/window_scores.h"
#include "tests/runtime/base/golden_files.h"

namespace thimble {
namespace {

struct Differences {
  double largest = 0, mean = 0;
};

Differences nll_differences(const AnyModel& model, const std::string& folder, const std::string& tokens_name,
                            int64_t context, int64_t windows) {
  GoldenFile golden(shared_data(folder + "/golden.safetensors"));
  std::vector<uint16_t> tokens = golden.tokens(tokens_name);
  std::vector<float> expected = golden.floats("nll_fp32");
  std::unique_ptr<Backend> backend = make_cpu_backend();
  std::unique_ptr<WindowScorer> scorer = make_window_scorer(model, *backend, context);
  Differences found;
  for (int64_t w = 0; w < windows; ++w) {
    std::span<const uint16_t> inputs =
        std::span(tokens).subspan(static_cast<size_t>(w * context), static_cast<size_t>(context));
    ConstMatrixView rows = scorer->log_probabilities(inputs, 0);
    for (int64_t p = 0; p < context; ++p) {
      auto target = static_cast<size_t>(w * context + p);
      double difference = std::abs(-static_cast<double>(rows.row(p)[tokens[target + 1]]) - expected[target]);
      found.largest = std::max(found.largest, difference);
      found.mean += difference / static_cast<double>(windows * context);
    }
  }
  return found;
}

TEST(ForwardGolden, Golf30mLossesMatch) {
  if (!file_exists(shared_data("golf30m/golden.safetensors"))) GTEST_SKIP() << "golden checkpoints are not here";
  Differences found = nll_differences(load_golden_model("golf30m"), "golf30m", "golden_tokens", 2048, 8);
  EXPECT_LE(found.largest, 2e-4);
  EXPECT_LE(found.mean, 2e-5);
}

TEST(ForwardGolden, TinyLossesMatch) {
  if (!file_exists(shared_data("tiny/golden.safetensors"))) GTEST_SKIP() << "golden checkpoints are not here";
  Differences found = nll_differences(load_golden_model("tiny"), "tiny", "tokens", 1024, 4);
  EXPECT_LE(found.largest, 2e-4);
  EXPECT_LE(found.mean, 2e-5);
}

TEST(ForwardGolden, Gpt2LossesMatch) {
  if (!file_exists(shared_data("gpt2-small/golden.safetensors"))) GTEST_SKIP() << "golden checkpoints are not here";
  OpenedCheckpoint source = open_model_checkpoint(shared_data("gpt2-small/model.safetensors"), "");
  AnyModel model = bind_any_model(require_runnable(source), source.tensors);
  Differences found = nll_differences(model, "gpt2-small", "tokens", 512, 4);
  RecordProperty("largest", std::to_string(found.largest));
  RecordProperty("mean", std::to_string(found.mean));
  EXPECT_LE(found.largest, 5e-4);
  EXPECT_LE(found.mean, 5e-5);
}

TEST(ForwardGolden, Golf30mLogitsMatch) {
  if (!file_exists(shared_data("golf30m/golden.safetensors"))) GTEST_SKIP() << "golden checkpoints are not here";
  Model model = load_golden_model("golf30m");
  GoldenFile golden(shared_data("golf30m/golden.safetensors"));
  std::vector<uint16_t> tokens = golden.tokens("golden_tokens");
  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowScorer scorer(model, *backend, 2048);
  ConstMatrixView logits = scorer.logits(std::span(tokens).first(2048), 0);
  int64_t vocabulary = model.config.vocab_size;
  double largest = 0;
  for (const auto& [name, first_row] : {std::pair{"logits_fp32_w0_first16", 0}, {"logits_fp32_w0_last16", 2048 - 16}}) {
    std::vector<float> expected = golden.floats(name);
    for (int64_t r = 0; r < 16; ++r)
      for (int64_t v = 0; v < vocabulary; ++v)
        largest = std::max(largest, std::abs(static_cast<double>(logits.row(first_row + r)[v]) -
                                             expected[static_cast<size_t>(r * vocabulary + v)]));
  }
  EXPECT_LE(largest, 5e-4);
}

}  // namespace
}  // namespace thimble
