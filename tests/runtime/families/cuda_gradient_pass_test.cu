// cuda_gradient_pass_test.cu: forward and backward passes on the device against the CPU's: every gradient that an
// observer sees, those of vectors, the loss, and what batches must not change.
#include "runtime/cuda/cuda_gradient_pass.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "runtime/cpu/cpu_gradients.h"
#include "tests/runtime/cuda/device_values.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/families/network_samples.h"

namespace thimble::cuda_gradient_pass_test {
namespace {

constexpr PassOptions kOptions{.has_backward = true,
                               .reads_linear_outputs = true,
                               .reads_head_output = true,
                               .has_vector_gradients = true,
                               .reads_linear_inputs = true};

struct Seen {
  std::map<std::string, Matrix> gradients, outputs, inputs, lookups;
  std::map<std::string, std::vector<int32_t>> rows;
};

// A matrix or a table may be used several times: the first use that a backward pass comes to counts here.
template <typename T>
class DeviceRecorder final : public CudaGradientObserver<T> {
 public:
  using typename CudaGradientObserver<T>::ConstView;

  void on_output_gradient(const std::string& weight, ConstView gradient, ConstView output, const BatchShape&,
                          cudaStream_t) override {
    seen.gradients.emplace(weight, download(gradient));
    seen.outputs.emplace(weight, download(output));
  }
  void on_head_gradient(const std::string& weight, ConstView gradient, ConstCudaView output, const BatchShape&,
                        cudaStream_t) override {
    seen.gradients.emplace(weight, download(gradient));
    seen.outputs.emplace(weight, download(output));
  }
  void on_linear_gradient(const std::string& weight, ConstView gradient, ConstView input, const BatchShape&,
                          cudaStream_t) override {
    EXPECT_EQ(input.rows, gradient.rows);
    seen.inputs.emplace(weight, download(input));
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstView gradient,
                          const BatchShape&, cudaStream_t) override {
    if (seen.lookups.emplace(table, download(gradient)).second) seen.rows[table].assign(rows.begin(), rows.end());
  }
  Seen seen;
};

class HostRecorder final : public GradientObserver {
 public:
  void on_output_gradient(const std::string& weight, int64_t, ConstMatrixView gradient,
                          ConstMatrixView output) override {
    keep(gradient, weight, seen.gradients);
    keep(output, weight, seen.outputs);
  }
  void on_linear_gradient(const std::string& weight, ConstMatrixView, ConstMatrixView input) override {
    keep(input, weight, seen.inputs);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override {
    if (keep(gradient, table, seen.lookups)) seen.rows[table].assign(rows.begin(), rows.end());
  }
  Seen seen;

 private:
  static bool keep(ConstMatrixView from, const std::string& name, std::map<std::string, Matrix>& to) {
    Matrix copy(from.rows, from.cols);
    for (int64_t r = 0; r < from.rows; ++r) std::copy(from.row(r), from.row(r) + from.cols, copy.row(r));
    return to.emplace(name, std::move(copy)).second;
  }
};

double largest_of(const Matrix& values) {
  double largest = 0;
  for (float value : values.values()) largest = std::max(largest, std::abs(double{value}));
  return largest;
}

void compare(const std::map<std::string, Matrix>& found, const std::map<std::string, Matrix>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, matrix] : expected) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(found.contains(name));
    // Of windows of one or two tokens some gradients are zero but for rounding.
    Matrix difference = found.at(name);
    ASSERT_EQ(difference.values().size(), matrix.values().size());
    for (size_t i = 0; i < difference.values().size(); ++i) difference.values()[i] -= matrix.values()[i];
    ASSERT_LE(largest_of(difference), 2e-4 * std::max(largest_of(matrix), 1e-2));
  }
}

void compare(const VectorGradients& found, const VectorGradients& expected, const Network& network) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t v = 0; v < expected.size(); ++v) {
    SCOPED_TRACE(network.vectors[v].parameter);
    ASSERT_EQ(found[v].size(), expected[v].size());
    double largest = 1;  // a sum may cancel
    for (double value : expected[v]) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < expected[v].size(); ++i) ASSERT_NEAR(found[v][i], expected[v][i], 2e-4 * largest) << i;
  }
}

DeviceArray<int32_t> upload_targets(std::span<const Token> tokens, int64_t sequences, int64_t stride,
                                    int64_t positions) {
  std::vector<int32_t> targets;
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t p = 1; p <= positions; ++p) targets.push_back(tokens[static_cast<size_t>(s * stride + p)]);
  return DeviceArray<int32_t>(std::span<const int32_t>(targets));
}

void expect_the_cpus(const NetworkSample& sample) {
  const int64_t positions = sample.window, context = sample.context;
  const std::vector<Token> tokens = sample.tokens(positions + 1);
  CpuGradients reference(*sample.weights, context, /*for_gains=*/true, /*for_matrices=*/true);
  HostRecorder expected;
  VectorGradients expected_vectors;
  const double expected_loss = reference.run(tokens, {}, expected, &expected_vectors);

  const CudaNetworkWeights<float> weights(*sample.weights, {}, cuda_plain_options(sizeof(float)));
  CudaGradientPass<float> pass(weights, kOptions, context, 1, positions);
  CudaVectorSums vectors(weights.network());
  DeviceRecorder<float> found;
  const DeviceArray<int32_t> targets = upload_targets(tokens, 1, 0, positions);
  pass.forward(tokens, 0, {1, positions});
  pass.backward(next_token_targets(targets.data()), found, &vectors);
  EXPECT_NEAR(pass.loss(), expected_loss, 1e-4 * expected_loss);
  compare(found.seen.gradients, expected.seen.gradients);
  compare(found.seen.outputs, expected.seen.outputs);
  compare(found.seen.inputs, expected.seen.inputs);
  compare(found.seen.lookups, expected.seen.lookups);
  EXPECT_EQ(found.seen.rows, expected.seen.rows);
  compare(vectors.read(weights.host_vectors(), pass.stream()), expected_vectors, weights.network());
}

class CudaGradients : public ::testing::TestWithParam<NetworkRecipe> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  }
};
INSTANTIATE_TEST_SUITE_P(Samples, CudaGradients, ::testing::ValuesIn(network_recipes()), recipe_name);

TEST_P(CudaGradients, AreTheCpus) { expect_the_cpus(GetParam().make()); }

// Of values and gradients that are stored in bf16: how far those of a matrix are off all in all.
double relative_difference(const std::map<std::string, Matrix>& found, const std::map<std::string, Matrix>& expected) {
  double worst = 0;
  for (const auto& [name, matrix] : expected) {
    double squares = 0, of_difference = 0;
    const Matrix& other = found.at(name);
    for (size_t i = 0; i < matrix.values().size(); ++i) {
      const double value = matrix.values()[i], difference = other.values()[i] - value;
      squares += value * value;
      of_difference += difference * difference;
    }
    worst = std::max(worst, std::sqrt(of_difference / std::max(squares, 1e-12)));
  }
  return worst;
}

TEST_P(CudaGradients, InBf16AreNearTheCpus) {
  const NetworkSample sample = GetParam().make();
  const int64_t positions = sample.window, context = sample.context;
  if (positions == 1) GTEST_SKIP() << "of a token that sees itself alone, XSA leaves nothing but rounding";
  const std::vector<Token> tokens = sample.tokens(positions + 1);
  CpuGradients reference(*sample.weights, context, /*for_gains=*/true, /*for_matrices=*/true);
  HostRecorder expected;
  const double expected_loss = reference.run(tokens, {}, expected);

  const CudaNetworkWeights<__nv_bfloat16> weights(*sample.weights, {}, cuda_plain_options(sizeof(__nv_bfloat16)));
  CudaGradientPass<__nv_bfloat16> pass(weights, kOptions, context, 1, positions);
  CudaVectorSums vectors(weights.network());
  DeviceRecorder<__nv_bfloat16> found;
  const DeviceArray<int32_t> targets = upload_targets(tokens, 1, 0, positions);
  pass.forward(tokens, 0, {1, positions});
  pass.backward(next_token_targets(targets.data()), found, &vectors);
  EXPECT_NEAR(pass.loss(), expected_loss, 1e-2 * expected_loss);
  EXPECT_LE(relative_difference(found.seen.gradients, expected.seen.gradients), 0.05);
  EXPECT_LE(relative_difference(found.seen.outputs, expected.seen.outputs), 0.05);
  EXPECT_LE(relative_difference(found.seen.inputs, expected.seen.inputs), 0.05);
  EXPECT_LE(relative_difference(found.seen.lookups, expected.seen.lookups), 0.05);
  EXPECT_EQ(found.seen.rows, expected.seen.rows);
}

TEST(CudaGradientsOfAnyNetwork, AreTheCpus) {
  if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  for (uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    expect_the_cpus({"Random", random_weights(random_network(seed), seed), 19, 40});
    if (::testing::Test::HasFailure()) return;
  }
}

// A vocabulary whose logits are made in pieces of 64 rows.
TEST(CudaGradientsOfALargeVocabulary, AreTheCpus) {
  if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  constexpr int64_t kVocabulary = 1 << 20, kPositions = 67, kSequences = 2;
  Ops ops({{"table", {kVocabulary, 16}, Role::kTable}, {"head", {kVocabulary, 16}, Role::kHead}});
  const Value x = ops.gather("table");
  const auto weights = random_weights(std::move(ops).head(x, "head"), 7);
  const std::vector<Token> tokens = random_tokens(kSequences * (kPositions + 1), kVocabulary, 4);
  const CudaNetworkWeights<float> on_device(*weights, {}, cuda_plain_options(sizeof(float)));
  CudaGradientPass<float> pass(on_device, {.has_backward = true}, kPositions, kSequences, kPositions);
  const DeviceArray<int32_t> targets = upload_targets(tokens, kSequences, kPositions + 1, kPositions);
  struct Pieces final : CudaGradientObserver<float> {
    void on_output_gradient(const std::string&, ConstCudaView, ConstCudaView, const BatchShape&,
                            cudaStream_t) override {
      FAIL() << "no other matrix";
    }
    void on_head_gradient(const std::string&, ConstCudaView gradient, ConstCudaView, const BatchShape& batch,
                          cudaStream_t) override {
      EXPECT_EQ(gradient.rows, batch.rows());
      firsts.push_back(batch.first_position);
    }
    void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstCudaView gradient, const BatchShape&,
                            cudaStream_t) override {
      lookups = download(gradient);
    }
    std::vector<int64_t> firsts;
    Matrix lookups;
  } found;
  pass.forward(tokens, kPositions + 1, {kSequences, kPositions});
  pass.backward(next_token_targets(targets.data()), found, nullptr);
  EXPECT_EQ(found.firsts, (std::vector<int64_t>{0, 64, 0, 64}));
  double expected_loss = 0;
  CpuGradients reference(*weights, kPositions);
  for (int64_t s = 0; s < kSequences; ++s) {
    HostRecorder expected;
    expected_loss += reference.run(
        std::span(tokens).subspan(static_cast<size_t>(s * (kPositions + 1)), static_cast<size_t>(kPositions + 1)), {},
        expected);
    const Matrix& rows = expected.seen.lookups.at("table");
    for (int64_t p = 0; p < kPositions; ++p)
      for (int64_t c = 0; c < rows.cols(); ++c)
        ASSERT_NEAR(found.lookups(s * kPositions + p, c), rows(p, c), 2e-4 * largest_of(rows)) << s << ' ' << p;
  }
  EXPECT_NEAR(pass.loss(), expected_loss, 1e-5 * expected_loss);
}

class CudaGradientBatches : public CudaTest {
 protected:
  static constexpr int64_t kSequences = 4, kLength = 150;

  template <typename T>
  Seen run(CudaGradientPass<T>& pass, int64_t first, int64_t sequences, CudaVectorSums* vectors) const {
    const auto of_batch = std::span(tokens).subspan(static_cast<size_t>(first * kLength));
    const DeviceArray<int32_t> targets = upload_targets(of_batch, sequences, kLength, kLength - 1);
    DeviceRecorder<T> recorder;
    pass.forward(of_batch, kLength, {sequences, kLength - 1});
    pass.backward(next_token_targets(targets.data()), recorder, vectors);
    check_cuda(cudaStreamSynchronize(pass.stream()));
    return recorder.seen;
  }

  std::shared_ptr<const Weights> weights = random_golf_weights(small_golf_config(), 3);
  std::vector<Token> tokens = random_tokens(kSequences * kLength, weights->network->vocabulary(), 4);
};

template <typename T>
class CudaGradientStorage : public CudaGradientBatches {};

using StorageTypes = ::testing::Types<float, __nv_bfloat16>;
TYPED_TEST_SUITE(CudaGradientStorage, StorageTypes);

// Bit for bit: windows alone, two by two, and all at once; and all at once again.
TYPED_TEST(CudaGradientStorage, IsTheSameInAnyBatch) {
  using Fixture = CudaGradientBatches;
  const CudaNetworkWeights<TypeParam> on_device(*this->weights, {}, cuda_plain_options(sizeof(TypeParam)));
  std::vector<VectorGradients> sums;
  std::vector<std::map<std::string, std::vector<float>>> seen;
  for (int64_t batch : {4, 1, 2, 4}) {
    CudaGradientPass<TypeParam> pass(on_device, kOptions, Fixture::kLength, batch, Fixture::kLength - 1);
    CudaVectorSums vectors(on_device.network());
    std::map<std::string, std::vector<float>>& all = seen.emplace_back();
    for (int64_t first = 0; first < Fixture::kSequences; first += batch)
      for (const auto& [name, gradient] : this->run(pass, first, batch, &vectors).gradients)
        all[name].insert(all[name].end(), gradient.values().begin(), gradient.values().end());
    sums.push_back(vectors.read(on_device.host_vectors(), pass.stream()));
  }
  for (size_t i = 1; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], seen[0]);
    EXPECT_EQ(sums[i], sums[0]);
  }
}

// A pass that keeps nothing for a way back lays values over each other, and makes the same of them.
TYPED_TEST(CudaGradientStorage, IsTheSameWithoutAWayBack) {
  using Fixture = CudaGradientBatches;
  const CudaNetworkWeights<TypeParam> on_device(*this->weights, {}, cuda_plain_options(sizeof(TypeParam)));
  std::vector<Matrix> found;
  for (const PassOptions& options : {PassOptions{}, PassOptions{.has_backward = true, .keeps = Keeps::kAll}}) {
    CudaGradientPass<TypeParam> pass(on_device, options, Fixture::kLength, 2, Fixture::kLength - 1);
    pass.forward(this->tokens, Fixture::kLength, {2, Fixture::kLength - 1});
    found.push_back(download(pass.head_input()));
  }
  EXPECT_TRUE(std::ranges::equal(found[0].values(), found[1].values()));
}

TEST_F(CudaGradientBatches, LogitsAreTheCpus) {
  const auto inputs = std::span(tokens).first(static_cast<size_t>(kLength - 1));
  CpuPass reference(*weights, kLength);
  const ConstMatrixView hidden = reference.run(window_batch(inputs));
  Matrix expected(hidden.rows, weights->network->vocabulary());
  reference.logits(hidden, expected);
  const CudaNetworkWeights<float> on_device(*weights, {}, cuda_plain_options(sizeof(float)));
  CudaGradientPass<float> pass(on_device, kOptions, kLength, 1, kLength - 1);
  pass.forward(inputs, 0, {1, kLength - 1});
  DeviceArray<float> logits(expected.rows() * expected.cols());
  const CudaView view{logits.data(), expected.rows(), expected.cols()};
  const Head& head = weights->network->head;
  launch_logits(pass.head_input(), on_device.matrix(head.weight), head.softcap, view, pass.stream());
  check_cuda(cudaStreamSynchronize(pass.stream()));
  const Matrix found = download(view);
  for (int64_t r = 0; r < expected.rows(); ++r)
    for (int64_t c = 0; c < expected.cols(); ++c) ASSERT_NEAR(found(r, c), expected(r, c), 1e-3) << r << ' ' << c;
}

}  // namespace
}  // namespace thimble::cuda_gradient_pass_test
