// fisher_golden_test.cpp: loss statistics of the bundled model against those of PyTorch's automatic differentiation in
// float64 (examples/tiny/fisher_golden.safetensors, made by scripts/fisher_reference.py).
#include <gtest/gtest.h>

#include <algorithm>

#include "quantizer/checkpoints/model_source.h"
#include "quantizer/pipeline/calibration.h"
#include "runtime/cuda/kernels/cuda_devices.h"
#include "tests/quantizer/pipeline/golden_files.h"
#include "tests/support/test_files.h"

namespace thimble::fisher_golden_test {
namespace {

// Float32 passes against float64, relative to a tensor's largest value: 30 times what is found.
constexpr double kTolerance = 1e-4;

void expect_golden(const Device& device) {
  const std::string folder = source_file("examples/tiny/");
  OpenedCheckpoint source(folder + "model.safetensors", "");
  GoldenFile golden(folder + "fisher_golden.safetensors");
  const Shape& shape = golden.tensors.at("tokens").shape;
  TokenSequences sequences{shape[0], shape[1], golden.tokens("tokens")};
  SilentProgress progress;
  const WorkFolder nowhere("");
  const std::unique_ptr<Ranks> alone = make_single_rank();
  StoredStatistics found = collect_statistics(source.weights(), device, sequences, /*with_loss=*/true, /*key=*/0,
                                              {nowhere, *alone}, progress);
  size_t compared = 0;
  for (const auto& [prefix, set] :
       {std::pair<std::string, const FisherSet*>("output_fisher/", &found.loss.output_fisher),
        {"lookup_fisher/", &found.loss.lookup_fisher}}) {
    for (const auto& [name, fisher] : *set) {
      std::vector<float> expected = golden.floats(prefix + name);
      ASSERT_EQ(fisher.mean_square.size(), expected.size()) << name;
      double largest = *std::ranges::max_element(expected);
      for (size_t r = 0; r < expected.size(); ++r)
        ASSERT_NEAR(fisher.mean_square[r], expected[r], kTolerance * largest) << prefix << name << " output " << r;
      ++compared;
    }
  }
  EXPECT_EQ(compared + 1, golden.tensors.size());  // all but the tokens
}

TEST(FisherGolden, BundledModel) { expect_golden({}); }

TEST(FisherGolden, BundledModelOnCuda) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  expect_golden({true, {0}});
}

}  // namespace
}  // namespace thimble::fisher_golden_test
