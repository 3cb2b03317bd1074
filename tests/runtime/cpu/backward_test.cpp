// backward_test.cpp: gradients of whole models against central differences of the naive float64 forward pass
// (naive_golf.h), over every option: at the output of each matrix and each lookup, and of each small tensor.
#include "runtime/cpu/backward.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/gradient_ops.h"
#include "runtime/cpu/window_gradients.h"
#include "runtime/cpu/window_scores.h"
#include "tests/runtime/families/golf/golf_cases.h"
#include "tests/runtime/families/golf/naive_golf.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

constexpr double kStep = 1e-5;

struct GradientRecorder final : GradientObserver {
  void on_output_gradient(const std::string& weight, ConstMatrixView gradient, ConstMatrixView output) override {
    keep(weight, gradient);
    row_gains[weight] = column_dots(gradient, output);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override {
    keep("lookup " + table, gradient);
    lookups[table].assign(rows.begin(), rows.end());
  }
  void keep(const std::string& name, ConstMatrixView gradient) {
    EXPECT_FALSE(gradients.contains(name)) << name;
    Matrix& copy = gradients[name];
    copy.resize(gradient.rows, gradient.cols);
    for (int64_t p = 0; p < gradient.rows; ++p)
      std::copy(gradient.row(p), gradient.row(p) + gradient.cols, copy.row(p));
  }
  std::map<std::string, Matrix> gradients;
  std::map<std::string, std::vector<int32_t>> lookups;
  std::map<std::string, std::vector<double>> row_gains;  // gradients of their logarithms
};

class Backward : public testing::TestWithParam<GolfCase> {
 protected:
  void SetUp() override {
    GetParam().change(config_);
    tensors_ = random_golf_tensors(config_, 3);
    model_ = bind_model(config_, views_of(tensors_));
    tokens_ = random_tokens(GetParam().window + 1, config_.vocab_size, 4);
    WindowGradients window(model_, *backend_, GetParam().context);
    loss_ = window.run(tokens_, {}, found_, &small_);
  }

  std::span<const uint16_t> inputs() const { return std::span(tokens_).first(tokens_.size() - 1); }
  std::span<const uint16_t> targets() const { return std::span(tokens_).subspan(1); }

  double naive_loss_with(const NaiveEdit& edit) const {
    return naive_loss(naive_golf_forward(config_, views_of(tensors_), inputs(), GetParam().context, edit), targets());
  }

  // The derivative of the loss as `name`'s output moves along direction(p, i).
  double derivative(const std::string& name, const std::function<double(size_t, size_t)>& direction) const {
    auto loss_at = [&](double step) {
      return naive_loss_with([&](const std::string& other, NaiveRows& output) {
        if (other != name) return;
        for (size_t p = 0; p < output.size(); ++p)
          for (size_t i = 0; i < output[p].size(); ++i) output[p][i] += step * direction(p, i);
      });
    };
    return (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep);
  }

  // Float32 rounding of both passes, relative to the largest element of a gradient.
  double relative_tolerance() const { return 4 * tolerance(config_, GetParam().window, 1); }

  static double largest(const Matrix& x) {
    double most = 0;
    for (float value : x.values()) most = std::max(most, std::abs(double{value}));
    return most;
  }

  // `found` is the derivative of the loss by element `index` of tensor `name`.
  void expect_derivative(const std::string& name, size_t index, double found, double allowed) {
    Tensor& tensor = tensors_.at(name);
    const std::vector<float> before = to_float32(tensor.view());
    std::vector<float> moved = before;
    auto loss_at = [&](double step) {
      moved[index] = static_cast<float>(double{before[index]} + step);
      tensor.bytes = from_float32(DType::kF32, moved);
      return std::pair(naive_loss_with({}), double{moved[index]});
    };
    // Steps as wide as float32 weights need; what they measure is as good as its square.
    auto [above, high] = loss_at(1e-3);
    auto [below, low] = loss_at(-1e-3);
    tensor.bytes = from_float32(DType::kF32, before);
    EXPECT_NEAR(found, (above - below) / (high - low), allowed) << name << " [" << index << "]";
  }

  void expect_small(const std::string& name, size_t offset, std::span<const double> found) {
    double most = 0;
    for (double value : found) most = std::max(most, std::abs(value));
    double allowed = (1e-4 + relative_tolerance()) * std::max(1.0, most);
    for (size_t i = 0; i < found.size(); i += 1 + found.size() / 5)
      expect_derivative(name, offset + i, found[i], allowed);
  }

  // Chain rule from sigma(gate) to the gate that the checkpoint holds.
  static std::vector<double> through_sigma(std::vector<double> gradient, std::span<const float> sigma) {
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] *= double{sigma[i]} * (1 - double{sigma[i]});
    return gradient;
  }

  ModelConfig config_ = small_golf_config();
  OwnedTensors tensors_;
  Model model_;
  std::vector<uint16_t> tokens_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
  GradientRecorder found_;
  SmallGradients small_;
  double loss_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Options, Backward, testing::ValuesIn(kGolfCases),
                         [](const auto& test) { return test.param.name; });

TEST_P(Backward, EveryMatrixAndTableHasAGradient) {
  std::map<std::string, int64_t> expected;
  for (const auto& [name, shape] : golf_tensor_shapes(config_)) {
    if (!name.ends_with(".weight")) continue;
    bool is_table = name == kTokenEmbedding || name == kBigramEmbedding || name == kValueEmbedding;
    if (is_table) expected["lookup " + name] = shape[1];
    if (!is_table || name == head_name(config_)) expected[name] = shape[0];
  }
  for (const auto& [name, width] : expected) {
    ASSERT_TRUE(found_.gradients.contains(name)) << name;
    EXPECT_EQ(found_.gradients.at(name).rows(), GetParam().window) << name;
    EXPECT_EQ(found_.gradients.at(name).cols(), width) << name;
  }
  EXPECT_EQ(found_.gradients.size(), expected.size());
}

TEST_P(Backward, TheLossIsTheSummedNll) {
  EXPECT_NEAR(loss_, naive_loss_with({}), relative_tolerance() * loss_);
  WindowScorer scorer(model_, *backend_, GetParam().context);
  ConstMatrixView rows = scorer.log_probabilities(inputs(), 0);
  double sum = 0;
  for (int64_t p = 0; p < rows.rows; ++p) sum -= double{rows.row(p)[targets()[static_cast<size_t>(p)]]};
  EXPECT_NEAR(loss_, sum, 1e-6 * sum);
}

// Along a direction in which every element takes part.
TEST_P(Backward, OutputGradientsMatchAlongARandomDirection) {
  for (const auto& [name, gradient] : found_.gradients) {
    auto direction = [](size_t p, size_t i) { return 2 * uniform_at(9, p, i) - 1; };
    double along = 0, squares = 0;
    for (int64_t p = 0; p < gradient.rows(); ++p)
      for (int64_t i = 0; i < gradient.cols(); ++i) {
        along += gradient(p, i) * direction(static_cast<size_t>(p), static_cast<size_t>(i));
        squares += double{gradient(p, i)} * gradient(p, i);
      }
    EXPECT_NEAR(along, derivative(name, direction), relative_tolerance() * (std::sqrt(squares) + 0.01)) << name;
  }
}

TEST_P(Backward, SingleOutputsMatch) {
  // One each, at places that differ from matrix to matrix and from case to case.
  uint64_t draw = 0;
  for (const auto& [name, gradient] : found_.gradients) {
    auto any_of = [&](int64_t count) {
      return static_cast<int64_t>(uniform_at(static_cast<uint64_t>(config_.mlp_dim()), 11, draw++) *
                                  static_cast<double>(count));
    };
    int64_t p = any_of(gradient.rows()), i = any_of(gradient.cols());
    double expected = derivative(name, [&](size_t row, size_t column) {
      return row == static_cast<size_t>(p) && column == static_cast<size_t>(i) ? 1.0 : 0.0;
    });
    EXPECT_NEAR(gradient(p, i), expected, relative_tolerance() * (largest(gradient) + 0.01)) << name;
  }
}

TEST_P(Backward, LookupsNameTheirRows) {
  EXPECT_EQ(found_.lookups.at(kTokenEmbedding), std::vector<int32_t>(inputs().begin(), inputs().end()));
  if (!config_.ve_layers.empty()) {
    EXPECT_EQ(found_.lookups.at(kValueEmbedding), found_.lookups.at(kTokenEmbedding));
  }
  if (config_.bigram_vocab_size == 0) return;
  std::vector<int32_t> buckets;
  for (size_t p = 0; p + 1 < tokens_.size(); ++p)
    buckets.push_back(
        bigram_bucket(tokens_[p], p == 0 ? TokenBatch::kNoToken : tokens_[p - 1], config_.bigram_vocab_size));
  EXPECT_EQ(found_.lookups.at(kBigramEmbedding), buckets);
}

TEST_P(Backward, SmallTensorsMatch) {
  auto row = static_cast<size_t>(config_.model_dim);
  ASSERT_EQ(small_.layers.size(), static_cast<size_t>(config_.num_layers));
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerNames names(layer);
    const LayerGradients& g = small_.layers[static_cast<size_t>(layer)];
    const LayerWeights& w = model_.layers[static_cast<size_t>(layer)];
    expect_small(names.q_gain, 0, g.q_gain);
    expect_small(names.attn_scale, 0, g.attn_scale);
    expect_small(names.mlp_scale, 0, g.mlp_scale);
    expect_small(names.resid_mix, 0, g.mix_x);
    expect_small(names.resid_mix, row, g.mix_x0);
    EXPECT_EQ(g.skip_weight.size(), w.skip_weight.size());
    EXPECT_EQ(g.skip_gate.size(), w.skip_gate.size());
    size_t skip = static_cast<size_t>(layer - config_.encoder_layers()) * row;
    if (!g.skip_weight.empty()) expect_small("skip_weights", skip, g.skip_weight);
    if (!g.skip_gate.empty()) expect_small("skip_gates", skip, through_sigma(g.skip_gate, w.skip_gate));
  }
  if (config_.smear_gate) expect_small("smear.gate", 0, through_sigma(small_.smear_gate, model_.smear_gate));
  if (config_.bigram_vocab_size > 0) expect_small("bigram.scale", 0, {&small_.bigram_scale, 1});
  double shared = 0;
  for (size_t k = 0; k < config_.ve_layers.size(); ++k) {
    // A layer's scale is the product of the shared one and its own.
    const std::string name = "ve_layer_scales." + std::to_string(k);
    double own = to_float32(tensors_.at(name).view())[0], common = to_float32(tensors_.at("ve_shared.scale").view())[0];
    double product = small_.layers[static_cast<size_t>(config_.ve_layers[k])].value_embedding_scale;
    double by_own = product * common;
    expect_small(name, 0, {&by_own, 1});
    shared += product * own;
  }
  if (!config_.ve_layers.empty()) expect_small("ve_shared.scale", 0, {&shared, 1});
}

TEST_P(Backward, WindowsAndThreadsDoNotChangeBits) {
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    WindowGradients window(model_, *backend_, GetParam().context);
    GradientRecorder other, again;
    window.run(random_tokens(std::min<int64_t>(GetParam().window, 2) + 1, config_.vocab_size, 8), {},
               other);  // leaves its traces in the buffers
    EXPECT_EQ(window.run(tokens_, {}, again), loss_);
    for (const auto& [name, gradient] : found_.gradients)
      EXPECT_TRUE(std::ranges::equal(again.gradients.at(name).values(), gradient.values())) << name;
  }
}

}  // namespace
}  // namespace thimble
