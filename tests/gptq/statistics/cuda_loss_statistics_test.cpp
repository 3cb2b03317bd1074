// cuda_loss_statistics_test.cpp: loss statistics collected on the device against the CPU's.
#include "gptq/statistics/statistics_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "bench/runtime/golf30m_shape.h"
#include "runtime/cpu/cpu_gradients.h"
#include "tests/runtime/base/error_matcher.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"
#include "tests/runtime/ops/changed_matrix.h"

namespace thimble::cuda_loss_statistics_test {
namespace {

using SharedWeights = std::shared_ptr<const Weights>;

LossStatistics on_cuda(const SharedWeights& model, const TokenSequences& sequences, Device device = {true, {0}}) {
  SilentProgress progress;
  return collect_loss_statistics_cuda(model, device, sequences, progress);
}

LossStatistics on_cpu(const SharedWeights& model, const TokenSequences& sequences) {
  CpuGradients gradients(*model, sequences.length);
  FisherCollector fisher(*model->network);
  HessianCollector head;
  for (int64_t s = 0; s < sequences.count; ++s) {
    gradients.run(sequences.sequence(s), {nullptr, &head}, fisher);
    fisher.end_sequence();
  }
  LossStatistics statistics = std::move(fisher).finish();
  statistics.head = std::move(head).finish();
  return statistics;
}

void expect_near(const FisherSet& found, const FisherSet& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, fisher] : expected) {
    SCOPED_TRACE(name);
    const Fisher& other = found.at(name);
    EXPECT_EQ(other.token_count, fisher.token_count);
    ASSERT_EQ(other.mean_square.size(), fisher.mean_square.size());
    // With a single position some gradients are zero but for rounding.
    double largest = std::max(1e-9, *std::ranges::max_element(fisher.mean_square));
    for (size_t r = 0; r < fisher.mean_square.size(); ++r)
      ASSERT_NEAR(other.mean_square[r], fisher.mean_square[r], 1e-4 * largest) << r;
  }
}

void expect_near(const LossStatistics& found, const LossStatistics& expected) {
  expect_near(found.output_fisher, expected.output_fisher);
  expect_near(found.lookup_fisher, expected.lookup_fisher);
  EXPECT_EQ(found.row_counts, expected.row_counts);
  ASSERT_EQ(found.head.size(), 1U);
  const Hessian &head = *found.head.begin()->second, &reference = *expected.head.begin()->second;
  EXPECT_EQ(found.head.begin()->first, expected.head.begin()->first);
  EXPECT_EQ(head.token_count, reference.token_count);
  EXPECT_EQ(head.sequence_count, reference.sequence_count);
  for (int64_t i = 0; i < reference.matrix.size(); ++i)
    for (int64_t j = 0; j <= i; ++j) ASSERT_NEAR(head.matrix(i, j), reference.matrix(i, j), 1e-4) << i << ' ' << j;
}

void expect_same(const LossStatistics& found, const LossStatistics& expected) {
  EXPECT_EQ(found.output_fisher, expected.output_fisher);
  EXPECT_EQ(found.lookup_fisher, expected.lookup_fisher);
  EXPECT_EQ(found.row_counts, expected.row_counts);
  EXPECT_EQ(found.head.begin()->second->matrix, expected.head.begin()->second->matrix);
}

class CudaLossStatistics : public CudaTest {
 protected:
  static constexpr int64_t kSequences = 21, kLength = 41;

  SharedWeights model = random_golf_weights(small_golf_config(), 3);
  TokenSequences sequences{kSequences, kLength, random_tokens(kSequences* kLength, model->network->vocabulary(), 4)};
};

TEST_F(CudaLossStatistics, AreTheCpus) { expect_near(on_cuda(model, sequences), on_cpu(model, sequences)); }

TEST_F(CudaLossStatistics, OfAnotherFamily) {
  const SharedWeights gpt2 = random_gpt2_weights(small_gpt2_config(), 3);
  const TokenSequences tokens{5, 33, random_tokens(5 * 33, gpt2->network->vocabulary(), 4)};
  expect_near(on_cuda(gpt2, tokens), on_cpu(gpt2, tokens));
}

TEST_F(CudaLossStatistics, OfAnUntiedHeadAndWiderLayers) {
  GolfConfig config = small_golf_config();
  config.tie_embeddings = false;
  config.model_dim = 128;
  config.num_heads = 8;
  config.num_kv_heads = 2;
  config.rope_dims = 8;
  config.vocab_size = 300;
  config.skip_gates = false;
  const SharedWeights wide = random_golf_weights(config, 5);
  TokenSequences tokens{3, 301, random_tokens(3 * 301, config.vocab_size, 6)};
  expect_near(on_cuda(wide, tokens), on_cpu(wide, tokens));
}

TEST_F(CudaLossStatistics, OfThirtyMillionParameters) {
  const SharedWeights large = random_golf30m();
  TokenSequences tokens{2, 601, random_tokens(2 * 601, large->network->vocabulary(), 6)};
  expect_near(on_cuda(large, tokens), on_cpu(large, tokens));
}

// Products in bf16: of a matrix all in all within 1 %, its rows within 3 % at the median.
TEST_F(CudaLossStatistics, InBf16AreNearTheCpus) {
  const SharedWeights large = random_golf30m();
  TokenSequences tokens{2, 601, random_tokens(2 * 601, large->network->vocabulary(), 6)};
  const LossStatistics expected = on_cpu(large, tokens), found = on_cuda(large, tokens, {true, {0}, Numerics::kBf16});
  EXPECT_EQ(found.row_counts, expected.row_counts);
  for (const auto& [name, fisher] : expected.output_fisher) {
    SCOPED_TRACE(name);
    const std::vector<double>&rows = fisher.mean_square, &others = found.output_fisher.at(name).mean_square;
    const double sum = std::accumulate(rows.begin(), rows.end(), 0.0);
    EXPECT_NEAR(std::accumulate(others.begin(), others.end(), 0.0), sum, 0.01 * sum);
    std::vector<double> errors;
    for (size_t r = 0; r < rows.size(); ++r) errors.push_back(std::abs(others[r] - rows[r]) / std::max(rows[r], 1e-30));
    const auto middle = errors.begin() + static_cast<std::ptrdiff_t>(errors.size() / 2);
    std::ranges::nth_element(errors, middle);
    EXPECT_LT(*middle, 0.03);
  }
}

TEST_F(CudaLossStatistics, OfSequencesWithOneTarget) {
  TokenSequences tokens{9, 2, random_tokens(18, model->network->vocabulary(), 6)};
  expect_near(on_cuda(model, tokens), on_cpu(model, tokens));
}

TEST_F(CudaLossStatistics, AreTheSameBitsAgain) { expect_same(on_cuda(model, sequences), on_cuda(model, sequences)); }

// Device 0 stands for several: each of them collects its share by itself.
TEST_F(CudaLossStatistics, DoNotDependOnTheNumberOfDevices) {
  for (int64_t count : {1, 5, 21}) {
    TokenSequences tokens{count, kLength, random_tokens(count * kLength, model->network->vocabulary(), 6)};
    LossStatistics expected = on_cuda(model, tokens);
    for (size_t devices : {2, 3, 11}) {
      SCOPED_TRACE(std::to_string(count) + " sequences on " + std::to_string(devices) + " devices");
      expect_same(on_cuda(model, tokens, {true, std::vector<int>(devices, 0)}), expected);
    }
  }
}

TEST_F(CudaLossStatistics, DoNotDependOnTheBatch) {
  LossStatistics expected = on_cuda(model, sequences);
  // The least limit that a sequence at a time fits in: too little to keep all its values.
  auto plan = [&](Numerics numerics) {
    const uint64_t all = plan_gradients(model->network, numerics, kLength, 1, UINT64_MAX).bytes();
    return plan_gradients(model->network, numerics, kLength, 1, all - 1).bytes();
  };
  const uint64_t least = plan(Numerics::kBf16);
  expect_same(on_cuda(model, sequences, {true, {0}, Numerics::kFp32, plan(Numerics::kFp32)}), expected);
  expect_same(on_cuda(model, sequences, {true, {0}, Numerics::kBf16, least}),
              on_cuda(model, sequences, {true, {0}, Numerics::kBf16}));
  expect_error<DeviceError>(
      [&] {
        on_cuda(model, sequences, {true, {0}, Numerics::kBf16, least - 1});
      },
      {"out of device memory", "gradient collection", "1 sequence of 41 tokens"});
}

TEST_F(CudaLossStatistics, NameTheGradientThatIsNotFinite) {
  TokenSequences tokens{16, kLength, std::vector<Token>(static_cast<size_t>(16 * kLength), 1)};
  // Token 2 occurs in one sequence only, of the sixth part.
  tokens.tokens[static_cast<size_t>(11 * kLength + 7)] = 2;
  auto damaged = std::make_shared<Weights>(*model);
  change_matrix(*damaged, damaged->network->id_of(kValueEmbedding), [](Matrix& values) {
    for (int64_t c = 0; c < values.cols(); ++c) values(2, c) = NAN;
  });
  for (size_t devices : {1, 3})
    expect_error<Error>(
        [&] {
          on_cuda(damaged, tokens, {true, std::vector<int>(devices, 0)});
        },
        {"layer 'tok_emb.weight'", "at sequence 11, position", "output 0"});
}

}  // namespace
}  // namespace thimble::cuda_loss_statistics_test
