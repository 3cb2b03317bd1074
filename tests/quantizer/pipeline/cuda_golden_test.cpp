// cuda_golden_test.cpp: scores on CUDA devices against golden per-token losses of a real checkpoint.
#include <gtest/gtest.h>

#include <cmath>
#include <iostream>

#include "quantizer/checkpoints/model_source.h"
#include "runtime/cuda/cuda_models.h"
#include "tests/quantizer/pipeline/golden_files.h"

namespace thimble::cuda_golden_test {
namespace {

TEST(CudaGolden, Golf30mLossesMatch) {
  if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device is here";
  if (!file_exists(shared_data("golf30m/golden.safetensors"))) GTEST_SKIP() << "golden checkpoints are not here";
  const auto weights = OpenedCheckpoint(shared_data("golf30m/model.safetensors"), "").weights();
  GoldenFile golden(shared_data("golf30m/golden.safetensors"));
  const std::vector<Token> tokens = golden.tokens("golden_tokens");
  const std::vector<float> expected = golden.floats("nll_fp32");
  for (auto [numerics, most, mean] : {std::tuple{Numerics::kFp32, 2e-4, 2e-5}, {Numerics::kBf16, 0.5, 0.02}}) {
    std::vector<ScoreWindow> windows;
    for (size_t w = 0; w < 8; ++w)
      windows.push_back({std::span(tokens).subspan(w * 2048, 2048), std::span(tokens).subspan(w * 2048 + 1, 2048)});
    std::vector<float> nll(8 * 2048, NAN);
    make_cuda_scorer(weights, 0, numerics, 2048)->score(windows, nll);
    double largest = 0, sum = 0, bias = 0;
    for (size_t i = 0; i < nll.size(); ++i) {
      double difference = double{nll[i]} - expected[i];
      if (!(std::abs(difference) <= largest)) largest = std::abs(difference);
      sum += std::abs(difference);
      bias += difference;
    }
    const auto count = static_cast<double>(nll.size());
    std::cout << "largest " << largest << ", mean " << sum / count << ", bias " << bias / count << "\n";
    EXPECT_LE(largest, most);
    EXPECT_LE(sum / count, mean);
  }
}

}  // namespace
}  // namespace thimble::cuda_golden_test
