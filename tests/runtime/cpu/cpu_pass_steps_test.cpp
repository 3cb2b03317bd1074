// cpu_pass_steps_test.cpp: passes of any network by CpuPass: whole, in steps, with pauses, with a cache; against a
// plain float64 pass, and bit for bit against themselves. Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradients.h"
#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/ops/naive_network.h"
#include "tests/runtime/ops/random_tokens.h"
#include "tests/runtime/ops/sample_networks.h"

namespace thimble::cpu_pass_steps_test {
namespace {

constexpr int64_t kContext = 24;

Matrix copied(ConstMatrixView rows) {
  return filled(rows.rows, rows.cols, [&](int64_t r, int64_t c) { return double{rows.row(r)[c]}; });
}

TokenBatch batch_of(int64_t length, uint64_t seed = 1) { return window_batch(random_tokens(length, 13, seed)); }

// By the seed of a random network, or the network of every operation.
class CpuPassSteps : public ::testing::TestWithParam<int> {
 protected:
  std::shared_ptr<const Weights> weights_ = GetParam() < 0
                                                ? random_weights(network_of_every_operation(), 2)
                                                : random_weights(random_network(static_cast<uint64_t>(GetParam())), 5);
  const Network& network_ = *weights_->network;
};
INSTANTIATE_TEST_SUITE_P(Networks, CpuPassSteps, ::testing::Range(-1, 30));

TEST_P(CpuPassSteps, EveryValueIsThatOfTheNaivePass) {
  const TokenBatch batch = batch_of(11);
  const std::vector<MatrixF64> expected = naive_values(network_, naive_tensors(*weights_), batch, kContext);
  CpuPass pass(*weights_, kContext);
  pass.begin(batch);
  for (size_t i = 0; i < network_.nodes.size(); ++i) {
    pass.run_to(i + 1);
    const MatrixF64& value = expected[static_cast<size_t>(network_.nodes[i].output)];
    double largest = 1;
    for (double element : value.values()) largest = std::max(largest, std::abs(element));
    expect_close(
        pass.value(network_.nodes[i].output), [&](int64_t r, int64_t c) { return value(r, c); },
        [&](int64_t, int64_t) { return 0x1p-16 * largest; });
  }
}

TEST_P(CpuPassSteps, APauseAtAnyNodeChangesNoBit) {
  const TokenBatch batch = batch_of(11), other = batch_of(17, 2);
  CpuPass whole(*weights_, kContext);
  const Matrix expected = copied(whole.run(batch));
  CpuPass pass(*weights_, kContext);
  for (size_t node = 0; node <= network_.nodes.size(); ++node) {
    pass.begin(batch);
    pass.run_to(node);
    CpuPass::Pause pause = pass.pause();
    EXPECT_EQ(pause.next_node, node);
    pass.run(other);
    CpuPass fresh(*weights_, kContext);  // nothing but what a pause holds is needed
    for (CpuPass* next : {&pass, &fresh}) {
      next->resume(pause);
      next->run_to(network_.nodes.size());
      EXPECT_TRUE(same_bits(next->value(network_.head.hidden), expected)) << "before node " << node;
    }
  }
}

// Layers that are computed again for the backward pass give the same bits.
TEST_P(CpuPassSteps, LayersComputedAgainChangeNoBit) {
  struct Recorder final : GradientObserver {
    void on_output_gradient(const std::string& name, int64_t, ConstMatrixView gradient,
                            ConstMatrixView output) override {
      seen.push_back({name, copied(gradient), copied(output)});
    }
    void on_lookup_gradient(const std::string& name, std::span<const int32_t>, ConstMatrixView gradient) override {
      seen.push_back({name, copied(gradient), {}});
    }
    void on_linear_gradient(const std::string& name, ConstMatrixView gradient, ConstMatrixView input) override {
      seen.push_back({name, copied(gradient), copied(input)});
    }
    struct Seen {
      std::string name;
      Matrix gradient, other;
    };
    std::vector<Seen> seen;
  };
  const std::vector<Token> tokens = random_tokens(12, 13, 1);
  PassOptions options = {.has_backward = true,
                         .reads_linear_outputs = true,
                         .reads_head_output = true,
                         .has_vector_gradients = true,
                         .reads_linear_inputs = true};
  auto run = [&](Recorder& recorder, VectorGradients& vectors) {
    CpuGradients gradients(*weights_, kContext, options);
    return gradients.run(tokens, {}, recorder, &vectors);
  };
  Recorder expected, found;
  VectorGradients expected_vectors, found_vectors;
  const double loss = run(expected, expected_vectors);
  for (Keeps keeps : {Keeps::kCrossing, Keeps::kAll}) {
    options.keeps = keeps;
    found = {};
    EXPECT_EQ(run(found, found_vectors), loss);
    EXPECT_EQ(found_vectors, expected_vectors);
    ASSERT_EQ(found.seen.size(), expected.seen.size());
    for (size_t i = 0; i < expected.seen.size(); ++i) {
      EXPECT_EQ(found.seen[i].name, expected.seen[i].name);
      EXPECT_TRUE(same_bits(found.seen[i].gradient, expected.seen[i].gradient)) << expected.seen[i].name;
      EXPECT_TRUE(same_bits(found.seen[i].other, expected.seen[i].other)) << expected.seen[i].name;
    }
  }
}

TEST_P(CpuPassSteps, TheLastRowsAloneAreTheSame) {
  const TokenBatch batch = batch_of(11);
  CpuPass pass(*weights_, kContext);
  const Matrix expected = copied(pass.run(batch));
  for (int64_t first = 1; first < 11; ++first) {
    CpuPass fresh(*weights_, kContext);
    for (CpuPass* one : {&pass, &fresh}) {
      const ConstMatrixView rows = one->run(batch, nullptr, first);
      ASSERT_EQ(rows.rows, 11 - first);
      expect_close(
          rows, [&](int64_t r, int64_t c) { return double{expected(first + r, c)}; },
          [](int64_t, int64_t) { return 0x1p-16; });
    }
  }
}

// Several sequences in pieces of several positions through one cache, as one window each.
TEST_P(CpuPassSteps, CachedPiecesOfABatchEqualWindows) {
  constexpr int64_t kSequences = 3, kLength = 12;
  CpuPass window(*weights_, kContext), pieces(*weights_, kContext);
  std::vector<TokenBatch> windows;
  std::vector<Matrix> expected;
  for (uint64_t s = 0; s < kSequences; ++s) {
    windows.push_back(batch_of(kLength, 10 + s));
    expected.push_back(copied(window.run(windows.back())));
  }
  CpuCache cache(network_, kSequences, kContext);
  int64_t done = 0;
  for (int64_t positions : {1, 2, 5, 1, 3}) {
    TokenBatch batch;
    batch.shape = {kSequences, positions, done};
    for (const TokenBatch& one : windows)
      for (int64_t p = done; p < done + positions; ++p) {
        batch.tokens.push_back(one.tokens[static_cast<size_t>(p)]);
        batch.previous.push_back(one.previous[static_cast<size_t>(p)]);
      }
    const ConstMatrixView found = pieces.run(batch, &cache);
    for (int64_t s = 0; s < kSequences; ++s)
      expect_close(
          found.block_rows(s * positions, positions),
          [&](int64_t r, int64_t c) { return double{expected[static_cast<size_t>(s)](done + r, c)}; },
          [](int64_t, int64_t) { return 0x1p-16; });
    done += positions;
  }
  EXPECT_EQ(done, kLength);
}

TEST_P(CpuPassSteps, ObserversSeeEachLinearInputOnceAndInOrder) {
  struct Recorder final : LinearObserver {
    void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
      names.emplace_back(weights.begin(), weights.end());
      inputs.push_back(copied(input));
    }
    std::vector<std::vector<std::string>> names;
    std::vector<Matrix> inputs;
  } recorder;
  const TokenBatch batch = batch_of(11);
  CpuPass pass(*weights_, kContext);
  const Matrix expected = copied(pass.run(batch));
  EXPECT_TRUE(same_bits(pass.run(batch, nullptr, 0, &recorder), expected));
  const std::vector<LinearInput> inputs = network_.linear_inputs();
  ASSERT_EQ(recorder.inputs.size(), inputs.size());
  pass.begin(batch);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(recorder.names[i].size(), inputs[i].readers.size());
    for (size_t k = 0; k < inputs[i].readers.size(); ++k)
      EXPECT_EQ(recorder.names[i][k], network_.matrix(inputs[i].readers[k]).name);
    pass.run_to(inputs[i].first_reader);
    EXPECT_TRUE(same_bits(pass.value(inputs[i].value), recorder.inputs[i]));
  }
}

TEST_P(CpuPassSteps, ThreadsAndOtherBatchesChangeNoBit) {
  const TokenBatch batch = batch_of(11);
  CpuPass pass(*weights_, kContext);
  const Matrix expected = copied(pass.run(batch));
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    pass.run(batch_of(static_cast<int64_t>(threads) + 2, 7));
    EXPECT_TRUE(same_bits(pass.run(batch), expected)) << threads;
  }
}

TEST(CpuCache, HoldsKeysAndValuesOfEveryAttention) {
  const Network network = network_of_every_operation();
  EXPECT_EQ(CpuCache::bytes_per_sequence(network, 100, DType::kF32), 2u * 100 * 6 * sizeof(float));
  EXPECT_EQ(CpuCache::bytes_per_sequence(network, 100, DType::kBF16), 100u * 6 * sizeof(float));
  CpuCache cache(network, 2, 10);
  EXPECT_EQ(cache.capacity(), 10);
  EXPECT_EQ(cache.keys(0, 1, 0).rows, 10);
  EXPECT_EQ(cache.values(0, 1, 0).cols, 6);
  EXPECT_NE(cache.keys(0, 0, 0).data, cache.values(0, 0, 0).data);
  EXPECT_NE(cache.keys(0, 0, 0).data, cache.keys(0, 1, 0).data);
  EXPECT_EQ(cache.state(0).rows(), 2);
  EXPECT_EQ(cache.state(0).cols(), 12);
}

}  // namespace
}  // namespace thimble::cpu_pass_steps_test
