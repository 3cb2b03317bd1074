// cpu_pass_test.cpp: networks on the CPU against naive passes in float64: logits, inputs of linear layers, parts of
// windows, cached generation, gradients.
#include "runtime/cpu/cpu_pass.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/gradient_ops.h"
#include "runtime/cpu/window_gradients.h"
#include "runtime/families/golf/golf_network.h"
#include "runtime/families/gpt2/gpt2_network.h"
#include "runtime/families/small_tensors.h"
#include "tests/runtime/families/golf/golf_cases.h"
#include "tests/runtime/families/golf/naive_golf.h"
#include "tests/runtime/families/golf/random_model.h"
#include "tests/runtime/families/gpt2/naive_gpt2.h"
#include "tests/runtime/families/gpt2/random_gpt2.h"

namespace thimble {
namespace {

std::vector<int32_t> as_ids(const std::vector<uint16_t>& tokens) { return {tokens.begin(), tokens.end()}; }

void expect_rows(ConstMatrixView found, const NaiveRows& expected, int64_t first, double allowed) {
  ASSERT_EQ(found.rows, static_cast<int64_t>(expected.size()) - first);
  ASSERT_EQ(found.cols, static_cast<int64_t>(expected[0].size()));
  for (int64_t r = 0; r < found.rows; ++r)
    for (int64_t c = 0; c < found.cols; ++c)
      ASSERT_NEAR(found.row(r)[c], expected[static_cast<size_t>(first + r)][static_cast<size_t>(c)], allowed)
          << "row " << r << " column " << c;
}

struct InputRecorder final : LinearObserver {
  void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) override {
    Matrix copy(input.rows, input.cols);
    for (int64_t r = 0; r < input.rows; ++r) std::copy(input.row(r), input.row(r) + input.cols, copy.row(r));
    for (const std::string& name : weights) EXPECT_TRUE(inputs.emplace(name, copy).second) << name << " came twice";
  }
  std::map<std::string, Matrix> inputs;
};

struct GradientRecorder final : GradientObserver {
  void on_output_gradient(const std::string& weight, ConstMatrixView gradient, ConstMatrixView output) override {
    keep(weight, gradient);
    if (output.data) gains[weight] = column_dots(gradient, output);
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t>, ConstMatrixView gradient) override {
    keep("lookup " + table, gradient);
  }
  void keep(const std::string& name, ConstMatrixView gradient) {
    Matrix& copy = gradients[name];
    copy.resize(gradient.rows, gradient.cols);
    for (int64_t p = 0; p < gradient.rows; ++p)
      std::copy(gradient.row(p), gradient.row(p) + gradient.cols, copy.row(p));
  }
  std::map<std::string, Matrix> gradients;
  std::map<std::string, std::vector<double>> gains;
};

class GolfPass : public testing::TestWithParam<GolfCase> {
 protected:
  void SetUp() override {
    GetParam().change(config_);
    tensors_ = random_golf_tensors(config_, 3);
    weights_ = bind_weights(std::make_shared<Network>(golf_network(config_)), float_tensors(views_of(tensors_)));
    tokens_ = random_tokens(GetParam().window + 1, config_.vocab_size, 4);
    naive_ = naive_golf_forward(config_, views_of(tensors_), inputs(), GetParam().context);
  }
  std::span<const uint16_t> inputs() const { return std::span(tokens_).first(tokens_.size() - 1); }
  TokenBatch batch() const { return window_batch(as_ids({inputs().begin(), inputs().end()})); }
  double logit_tolerance() const { return tolerance(config_, GetParam().window, largest_value(naive_.logits)); }

  GolfConfig config_ = small_golf_config();
  OwnedTensors tensors_;
  Weights weights_;
  std::vector<uint16_t> tokens_;
  NaiveForward naive_;
};
INSTANTIATE_TEST_SUITE_P(Options, GolfPass, testing::ValuesIn(kGolfCases),
                         [](const auto& test) { return test.param.name; });

TEST_P(GolfPass, LogitsMatchTheNaivePass) {
  CpuPass pass(weights_, GetParam().context);
  for (int64_t first : {int64_t{0}, GetParam().window / 2, GetParam().window - 1}) {
    const ConstMatrixView hidden = pass.run(batch(), nullptr, first);
    Matrix logits(hidden.rows, config_.vocab_size);
    pass.logits(hidden, logits);
    expect_rows(logits, naive_.logits, first, logit_tolerance());
  }
}

TEST_P(GolfPass, ObserversSeeTheInputsOfLinearLayers) {
  CpuPass pass(weights_, GetParam().context);
  InputRecorder found;
  pass.run(batch(), nullptr, 0, &found);
  for (const auto& [name, expected] : naive_.linear_inputs) {
    if (name == head_name(config_)) continue;
    ASSERT_TRUE(found.inputs.contains(name)) << name;
    expect_rows(found.inputs.at(name), expected, 0, tolerance(config_, GetParam().window, largest_value(expected)));
  }
}

TEST_P(GolfPass, OneTokenAtATimeIsTheSame) {
  CpuPass whole(weights_, GetParam().context), steps(weights_, GetParam().context);
  CpuCache cache(*weights_.network, 1, GetParam().context);
  const TokenBatch all = batch();
  Matrix logits(all.shape.rows(), config_.vocab_size);
  for (int64_t p = 0; p < all.shape.rows(); ++p) {
    const auto at = static_cast<size_t>(p);
    const ConstMatrixView hidden = steps.run({{all.tokens[at]}, {all.previous[at]}, {1, 1, p}}, &cache);
    steps.logits(hidden, logits.view().block_rows(p, 1));
  }
  expect_rows(logits, naive_.logits, 0, logit_tolerance());
}

TEST_P(GolfPass, GradientsAreThoseOfTheOtherPass) {
  GradientRecorder expected, found;
  SmallGradients small;
  const Model model = bind_model(config_, views_of(tensors_));
  const std::unique_ptr<Backend> backend = make_cpu_backend();
  WindowGradients other(model, *backend, GetParam().context);
  const double expected_loss = other.run(tokens_, {}, expected, &small);

  CpuPass pass(weights_, GetParam().context, {},
               {.has_backward = true, .reads_linear_outputs = true, .has_vector_gradients = true});
  const ConstMatrixView hidden = pass.run(batch());
  Matrix logits(hidden.rows, config_.vocab_size);
  pass.logits(hidden, logits);
  const double loss = nll_backward(logits, std::span(tokens_).subspan(1), weights_.network->head.softcap);
  std::vector<std::vector<double>> vectors;
  pass.backward(logits, {}, found, &vectors);
  EXPECT_NEAR(loss, expected_loss, 1e-4 * std::abs(expected_loss));
  for (const auto& [name, gradient] : expected.gradients) {
    ASSERT_TRUE(found.gradients.contains(name)) << name;
    const Matrix& mine = found.gradients.at(name);
    ASSERT_EQ(mine.rows(), gradient.rows());
    double most = 0;
    for (float value : gradient.values()) most = std::max(most, std::abs(double{value}));
    for (size_t i = 0; i < gradient.values().size(); ++i)
      ASSERT_NEAR(mine.values()[i], gradient.values()[i], 2e-5 * std::max(most, 1e-3)) << name << " [" << i << "]";
    if (name == head_name(config_) || name.starts_with("lookup")) continue;
    for (size_t r = 0; r < expected.gains.at(name).size(); ++r)
      ASSERT_NEAR(found.gains.at(name)[r], expected.gains.at(name)[r], 1e-3) << name;
  }
  const NamedGradients stored = stored_gradients(*weights_.network, weights_.small, vectors);
  for (const auto& [name, values] : stored_gradients(config_, weights_.small, small)) {
    ASSERT_TRUE(stored.contains(name)) << name;
    for (size_t i = 0; i < values.size(); ++i) ASSERT_NEAR(stored.at(name)[i], values[i], 1e-3) << name;
  }
}

TEST(Gpt2Pass, LogitsMatchTheNaivePass) {
  const Gpt2Config config = small_gpt2_config();
  const OwnedTensors tensors = random_gpt2_tensors(config, 3);
  const Weights weights =
      bind_weights(std::make_shared<Network>(gpt2_network(config)), float_tensors(views_of(tensors)));
  const std::vector<uint16_t> tokens = random_tokens(23, config.vocab_size, 4);
  const NaiveForward naive = naive_gpt2_forward(config, views_of(tensors), tokens);
  CpuPass pass(weights, config.num_positions);
  for (int64_t first : {0, 11, 22}) {
    const ConstMatrixView hidden = pass.run(window_batch(as_ids(tokens)), nullptr, first);
    Matrix logits(hidden.rows, config.vocab_size);
    pass.logits(hidden, logits);
    expect_rows(logits, naive.logits, first, largest_value(naive.logits) * 0x1p-14);
  }
}

// By central differences of the loss, every small tensor: norms and biases.
TEST(Gpt2Pass, GradientsMatchDifferences) {
  const Gpt2Config config = small_gpt2_config();
  OwnedTensors tensors = random_gpt2_tensors(config, 3);
  const Weights weights =
      bind_weights(std::make_shared<Network>(gpt2_network(config)), float_tensors(views_of(tensors)));
  const std::vector<uint16_t> tokens = random_tokens(24, config.vocab_size, 4);
  CpuPass pass(weights, config.num_positions, {}, {.has_backward = true, .has_vector_gradients = true});
  const std::vector<uint16_t> inputs(tokens.begin(), tokens.end() - 1);
  const ConstMatrixView hidden = pass.run(window_batch(as_ids(inputs)));
  Matrix logits(hidden.rows, config.vocab_size);
  pass.logits(hidden, logits);
  nll_backward(logits, std::span(tokens).subspan(1), 0);
  GradientRecorder found;
  std::vector<std::vector<double>> vectors;
  pass.backward(logits, {}, found, &vectors);
  for (const auto& [name, gradient] : stored_gradients(*weights.network, weights.small, vectors)) {
    Tensor& tensor = tensors.at(name);
    const std::vector<float> before = to_float32(tensor.view());
    for (size_t i = 0; i < gradient.size(); i += 1 + gradient.size() / 4) {
      auto loss_at = [&](float step) {
        std::vector<float> moved = before;
        moved[i] += step;
        tensor.bytes = from_float32(DType::kF32, moved);
        return naive_loss(naive_gpt2_forward(config, views_of(tensors), inputs), std::span(tokens).subspan(1));
      };
      const double expected = (loss_at(1e-3f) - loss_at(-1e-3f)) / 2e-3;
      EXPECT_NEAR(gradient[i], expected, 2e-3 * std::max(1.0, std::abs(expected))) << name << " [" << i << "]";
      tensor.bytes = from_float32(DType::kF32, before);
    }
  }
}

}  // namespace
}  // namespace thimble
