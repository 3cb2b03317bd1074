// cuda_gradients_test.cpp: forward and backward passes on the device against the CPU's: every gradient that an observer
// sees, those of the small tensors, the loss, and what batches must not change.
#include "runtime/cuda/cuda_gradients.cuh"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/cpu/window_gradients.h"
#include "runtime/families/golf/golf_layout.h"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/cuda/kernels/device_copy.h"
#include "tests/runtime/families/golf/golf_cases.h"

namespace thimble {
namespace {

Matrix download(ConstCudaView view, cudaStream_t stream) {
  Matrix host(view.rows, view.columns);
  check_cuda(cudaMemcpyAsync(host.data(), view.data, host.values().size_bytes(), cudaMemcpyDeviceToHost, stream));
  check_cuda(cudaStreamSynchronize(stream));
  return host;
}

struct Seen {
  std::map<std::string, Matrix> gradients, outputs, lookups;
  std::map<std::string, std::vector<int32_t>> rows;
};

class DeviceRecorder final : public CudaGradientObserver {
 public:
  void on_output_gradient(const std::string& weight, ConstCudaView gradient, ConstCudaView output, const BatchShape&,
                          cudaStream_t stream) override {
    seen.gradients[weight] = download(gradient, stream);
    seen.outputs[weight] = download(output, stream);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstCudaView gradient,
                          const BatchShape&, cudaStream_t stream) override {
    seen.lookups[table] = download(gradient, stream);
    seen.rows[table].assign(rows.begin(), rows.end());
  }
  Seen seen;
};

class HostRecorder final : public GradientObserver, public LinearObserver {
 public:
  explicit HostRecorder(const Model& model) : matrices_(golf_matrices(model)) {}
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    for (const std::string& weight : weights) {
      Matrix& output = seen.outputs[weight];
      output.resize(input.rows, matrices_.at(weight)->rows());
      backend_->linear(input, *matrices_.at(weight), output);
    }
  }
  void on_output_gradient(const std::string& weight, ConstMatrixView gradient, ConstMatrixView) override {
    keep(gradient, seen.gradients[weight]);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override {
    keep(gradient, seen.lookups[table]);
    seen.rows[table].assign(rows.begin(), rows.end());
  }
  Seen seen;

 private:
  void keep(ConstMatrixView from, Matrix& to) {
    to.resize(from.rows, from.cols);
    backend_->copy(from, to);
  }
  std::map<std::string, const Matrix*> matrices_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};

void expect_near(std::span<const double> found, std::span<const double> expected, double scale, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  double largest = scale;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4 * largest) << what << ' ' << i;
}

void expect_near(const SmallGradients& found, const SmallGradients& expected) {
  // A sum may cancel: what it may be off by goes with the largest of its kind.
  expect_near(std::span(&found.bigram_scale, 1), std::span(&expected.bigram_scale, 1), 1, "bigram scale");
  expect_near(found.smear_gate, expected.smear_gate, 0.1, "smear gate");
  ASSERT_EQ(found.layers.size(), expected.layers.size());
  for (size_t i = 0; i < found.layers.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "layer " << i);
    const LayerGradients &f = found.layers[i], &e = expected.layers[i];
    expect_near(f.q_gain, e.q_gain, 1, "q_gain");
    expect_near(f.attn_scale, e.attn_scale, 0.1, "attn_scale");
    expect_near(f.mlp_scale, e.mlp_scale, 0.1, "mlp_scale");
    expect_near(f.mix_x, e.mix_x, 0.1, "mix_x");
    expect_near(f.mix_x0, e.mix_x0, 0.1, "mix_x0");
    expect_near(f.skip_weight, e.skip_weight, 0.1, "skip_weight");
    expect_near(f.skip_gate, e.skip_gate, 0.1, "skip_gate");
    expect_near(std::span(&f.value_embedding_scale, 1), std::span(&e.value_embedding_scale, 1), 1, "value embedding");
  }
}

void expect_near(const Seen& found, const Seen& expected) {
  auto compare = [](const std::map<std::string, Matrix>& f, const std::map<std::string, Matrix>& e) {
    ASSERT_EQ(f.size(), e.size());
    for (const auto& [name, matrix] : e) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(f.contains(name));
      // Of windows of one or two tokens some gradients are zero but for rounding.
      Matrix difference = f.at(name);
      ASSERT_EQ(difference.values().size(), matrix.values().size());
      for (size_t i = 0; i < difference.values().size(); ++i) difference.values()[i] -= matrix.values()[i];
      ASSERT_LE(largest_of(difference), 1e-4 * std::max(largest_of(matrix), 1e-2));
    }
  };
  compare(found.gradients, expected.gradients);
  compare(found.outputs, expected.outputs);
  compare(found.lookups, expected.lookups);
  EXPECT_EQ(found.rows, expected.rows);
}

DeviceArray<int32_t> upload_targets(std::span<const uint16_t> tokens, int64_t sequences, int64_t stride,
                                    int64_t positions) {
  std::vector<int32_t> targets;
  for (int64_t s = 0; s < sequences; ++s)
    for (int64_t p = 1; p <= positions; ++p) targets.push_back(tokens[static_cast<size_t>(s * stride + p)]);
  return DeviceArray<int32_t>(std::span<const int32_t>(targets));
}

class CudaGradientsOfCases : public testing::TestWithParam<GolfCase> {
 protected:
  void SetUp() override {
    if (cuda_device_names().empty()) GTEST_SKIP() << "no CUDA device";
  }
};

TEST_P(CudaGradientsOfCases, AreTheCpus) {
  ModelConfig config = small_golf_config();
  GetParam().change(config);
  Model model = random_golf_model(config, 7);
  int64_t positions = GetParam().window, context = GetParam().context;
  std::vector<uint16_t> tokens = random_tokens(positions + 1, config.vocab_size, 8);

  std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowGradients reference(model, *backend, context);
  HostRecorder expected(model);
  SmallGradients expected_small;
  double expected_loss = reference.run(tokens, {&expected, &expected}, expected, &expected_small);

  CudaFloatModel on_device(model);
  CudaGradients gradients(on_device, context);
  CudaSmallGradients small(model);
  DeviceRecorder found;
  DeviceArray<int32_t> targets = upload_targets(tokens, 1, 0, positions);
  gradients.forward(tokens, 0, {1, positions});
  gradients.backward(CudaTargets::next_tokens(targets.data()), found, &small);
  EXPECT_NEAR(gradients.loss(), expected_loss, 1e-5 * expected_loss);
  expect_near(found.seen, expected.seen);
  expect_near(small.read(gradients.stream()), expected_small);
}

INSTANTIATE_TEST_SUITE_P(Options, CudaGradientsOfCases, testing::ValuesIn(kGolfCases),
                         [](const testing::TestParamInfo<GolfCase>& test) { return test.param.name; });

class CudaGradientsTest : public CudaTest {
 protected:
  static constexpr int64_t kSequences = 4, kLength = 150;

  Seen run(CudaGradients& gradients, int64_t first, int64_t sequences, CudaSmallGradients* small) const {
    auto of_batch = std::span(tokens).subspan(static_cast<size_t>(first * kLength));
    DeviceArray<int32_t> targets = upload_targets(of_batch, sequences, kLength, kLength - 1);
    DeviceRecorder recorder;
    gradients.forward(of_batch, kLength, {sequences, kLength - 1});
    gradients.backward(CudaTargets::next_tokens(targets.data()), recorder, small);
    check_cuda(cudaStreamSynchronize(gradients.stream()));
    return recorder.seen;
  }
  static void expect_same(const SmallGradients& a, const SmallGradients& b) {
    EXPECT_EQ(a.bigram_scale, b.bigram_scale);
    EXPECT_EQ(a.smear_gate, b.smear_gate);
    for (size_t i = 0; i < a.layers.size(); ++i) {
      EXPECT_EQ(a.layers[i].q_gain, b.layers[i].q_gain);
      EXPECT_EQ(a.layers[i].skip_gate, b.layers[i].skip_gate);
      EXPECT_EQ(a.layers[i].mix_x0, b.layers[i].mix_x0);
      EXPECT_EQ(a.layers[i].value_embedding_scale, b.layers[i].value_embedding_scale);
    }
  }

  Model model = random_golf_model(small_golf_config(), 3);
  std::vector<uint16_t> tokens = random_tokens(kSequences * kLength, model.config.vocab_size, 4);
};

// Bit for bit: windows alone, two by two, and all at once; and all at once again.
TEST_F(CudaGradientsTest, DoNotDependOnTheBatch) {
  CudaFloatModel on_device(model);
  std::vector<SmallGradients> sums;
  std::vector<std::map<std::string, std::vector<float>>> seen;
  for (int64_t batch : {4, 1, 2, 4}) {
    CudaGradients gradients(on_device, kLength);
    CudaSmallGradients small(model);
    std::map<std::string, std::vector<float>>& all = seen.emplace_back();
    for (int64_t first = 0; first < kSequences; first += batch)
      for (const auto& [name, gradient] : run(gradients, first, batch, &small).gradients)
        all[name].insert(all[name].end(), gradient.values().begin(), gradient.values().end());
    sums.push_back(small.read(gradients.stream()));
  }
  for (size_t i = 1; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i], seen[0]);
    expect_same(sums[i], sums[0]);
  }
}

// What the forward pass gives as logits is what the reference does.
TEST_F(CudaGradientsTest, LogitsAreTheCpus) {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  ForwardPass forward(model, *backend, kLength);
  KeyValueCache cache(*backend, cache_shape(model.config), 1, kLength, true);
  Matrix expected(kLength - 1, model.config.vocab_size);
  auto inputs = std::span(tokens).first(static_cast<size_t>(kLength - 1));
  forward.logits(forward.hidden_states(window_batch(inputs), cache, 0), expected);
  CudaFloatModel on_device(model);
  CudaGradients gradients(on_device, kLength);
  gradients.forward(inputs, 0, {1, kLength - 1});
  DeviceCopy logits = DeviceCopy::poisoned(kLength - 1, model.config.vocab_size);
  gradients.logits(logits);
  thimble::expect_near(logits.download(), expected, 1e-5);
}

// The model as its own teacher: no divergence, no gradient. Another teacher: the slope that central differences of a
// gain find.
TEST_F(CudaGradientsTest, DivergenceHasTheSlopeThatDifferencesFind) {
  auto inputs = std::span(tokens);
  BatchShape batch{kSequences, kLength - 1};
  auto logits_of = [&](const Model& m) {
    CudaFloatModel device_model(m);
    CudaGradients gradients(device_model, kLength);
    gradients.forward(inputs, kLength, batch);
    DeviceArray<float> logits(batch.rows() * m.config.vocab_size);
    gradients.logits({logits.data(), batch.rows(), m.config.vocab_size});
    check_cuda(cudaStreamSynchronize(gradients.stream()));
    return logits;
  };
  auto divergence = [&](const Model& m, const DeviceArray<float>& teacher, SmallGradients* slopes) {
    CudaFloatModel device_model(m);
    CudaGradients gradients(device_model, kLength);
    CudaSmallGradients small(m);
    DeviceRecorder recorder;
    gradients.forward(inputs, kLength, batch);
    gradients.backward(CudaTargets::teacher(teacher.data()), recorder, &small);
    if (slopes) *slopes = small.read(gradients.stream());
    return gradients.loss();
  };
  SmallGradients slopes;
  EXPECT_NEAR(divergence(model, logits_of(model), &slopes), 0, 1e-3);
  EXPECT_NEAR(slopes.layers[2].mlp_scale[5], 0, 1e-3);

  Model other = random_golf_model(small_golf_config(), 3);
  for (LayerWeights& w : other.layers)
    for (float& scale : w.mlp_scale) scale *= 1.1f;
  DeviceArray<float> teacher = logits_of(other);
  EXPECT_GT(divergence(model, teacher, &slopes), 1e-2);
  constexpr float kStep = 1.0f / 64;
  Model up = random_golf_model(small_golf_config(), 3), down = random_golf_model(small_golf_config(), 3);
  up.layers[2].mlp_scale[5] += kStep;
  down.layers[2].mlp_scale[5] -= kStep;
  double slope = (divergence(up, teacher, nullptr) - divergence(down, teacher, nullptr)) / (2 * kStep);
  EXPECT_NEAR(slopes.layers[2].mlp_scale[5], slope, 0.02 * std::abs(slope) + 0.02);
}

}  // namespace
}  // namespace thimble
