// backward_test.cpp: gradients of whole models of every family and option against central differences of the naive
// float64 forward pass: at the output of each matrix and each lookup, and of each small tensor. Run once per
// instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/base/parallel.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/gradient_ops.h"
#include "tests/runtime/families/family_models.h"

namespace thimble::backward_test {
namespace {

constexpr double kStep = 1e-5;

struct GradientRecorder final : GradientObserver {
  void on_output_gradient(const std::string& weight, int64_t, ConstMatrixView gradient,
                          ConstMatrixView output) override {
    keep(weight, gradient);
    outputs.emplace(weight, copied(output));
  }
  void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows, ConstMatrixView gradient) override {
    keep("lookup " + table, gradient);
    lookups[table].assign(rows.begin(), rows.end());
  }
  void keep(const std::string& name, ConstMatrixView gradient) {
    EXPECT_TRUE(gradients.emplace(name, copied(gradient)).second) << name;
  }
  static Matrix copied(ConstMatrixView rows) {
    Matrix copy(rows.rows, rows.cols);
    for (int64_t r = 0; r < rows.rows; ++r) std::copy_n(rows.row(r), rows.cols, copy.row(r));
    return copy;
  }
  std::map<std::string, Matrix> gradients, outputs;
  std::map<std::string, std::vector<int32_t>> lookups;
};

class Backward : public ::testing::TestWithParam<FamilyCase> {
 protected:
  void SetUp() override {
    CpuGradients window(*model_.weights, model_.context, /*for_gains=*/true);
    VectorGradients vectors;
    loss_ = window.run(tokens_, {}, found_, &vectors);
    small_ = stored_gradients(model_.network(), model_.weights->small, vectors);
  }

  std::span<const Token> inputs() const { return std::span(tokens_).first(tokens_.size() - 1); }
  std::span<const Token> targets() const { return std::span(tokens_).subspan(1); }

  double naive_loss_with(const NaiveEdit& edit) const {
    return naive_loss(model_.naive(model_.tensors, inputs(), edit), targets());
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
  double relative_tolerance() const { return 4 * model_.tolerance(1); }

  static double largest(const Matrix& x) {
    double most = 0;
    for (float value : x.values()) most = std::max(most, std::abs(double{value}));
    return most;
  }

  // `found` is the derivative of the loss by element `index` of tensor `name`.
  void expect_derivative(const std::string& name, size_t index, double found, double allowed) {
    Tensor& tensor = model_.tensors.at(name);
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

  // Elements [first, first + count) of a small tensor.
  void expect_small(const std::string& name, int64_t first, int64_t count) {
    const std::vector<double>& gradient = small_.at(name);
    const auto found = std::span(gradient).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    double most = 0;
    for (double value : found) most = std::max(most, std::abs(value));
    double allowed = (1e-4 + relative_tolerance()) * std::max(1.0, most);
    for (size_t i = 0; i < found.size(); i += 1 + found.size() / 5)
      expect_derivative(name, static_cast<size_t>(first) + i, found[i], allowed);
  }

  FamilyModel model_ = GetParam().make();
  const std::vector<Token> tokens_ = model_.random_window();
  GradientRecorder found_;
  NamedGradients small_;
  double loss_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Options, Backward, ::testing::ValuesIn(family_cases()),
                         [](const auto& test) { return test.param.name; });

TEST_P(Backward, EveryMatrixAndTableHasAGradient) {
  std::map<std::string, int64_t> expected;
  for (const Parameter& parameter : model_.network().parameters) {
    if (parameter.role == Role::kSmall) continue;
    const bool is_table = parameter.role == Role::kTable;
    if (is_table) expected["lookup " + parameter.name] = parameter.shape[1];
    if (!is_table || parameter.name == model_.head_name()) expected[parameter.name] = parameter.shape[0];
  }
  for (const auto& [name, width] : expected) {
    ASSERT_TRUE(found_.gradients.contains(name)) << name;
    EXPECT_EQ(found_.gradients.at(name).rows(), model_.window) << name;
    EXPECT_EQ(found_.gradients.at(name).cols(), width) << name;
  }
  EXPECT_EQ(found_.gradients.size(), expected.size());
}

TEST_P(Backward, TheLossIsTheSummedNll) {
  EXPECT_NEAR(loss_, naive_loss_with({}), relative_tolerance() * loss_);
  std::vector<float> nll(targets().size());
  const ScoreWindow window{inputs(), targets()};
  make_cpu_scorer(model_.weights, Numerics::kFp32, model_.context)->score({&window, 1}, nll);
  double sum = 0;
  for (float one : nll) sum += double{one};
  EXPECT_NEAR(loss_, sum, 1e-6 * sum);
}

// Along a direction in which every element takes part.
TEST_P(Backward, OutputGradientsMatchAlongARandomDirection) {
  for (const auto& [name, gradient] : found_.gradients) {
    auto direction = [](size_t p, size_t i) { return 2 * uniform_at(9, p, i) - 1; };
    double along = 0, squares = 0;
    for (int64_t p = 0; p < gradient.rows(); ++p)
      for (int64_t i = 0; i < gradient.cols(); ++i) {
        along += double{gradient(p, i)} * direction(static_cast<size_t>(p), static_cast<size_t>(i));
        squares += double{gradient(p, i)} * double{gradient(p, i)};
      }
    EXPECT_NEAR(along, derivative(name, direction), relative_tolerance() * (std::sqrt(squares) + 0.01)) << name;
  }
}

TEST_P(Backward, SingleOutputsMatch) {
  // One each, at places that differ from matrix to matrix and from case to case.
  uint64_t draw = 0;
  const auto seed = static_cast<uint64_t>(model_.network().nodes.size());
  for (const auto& [name, gradient] : found_.gradients) {
    auto any_of = [&](int64_t count) {
      return static_cast<int64_t>(uniform_at(seed, 11, draw++) * static_cast<double>(count));
    };
    int64_t p = any_of(gradient.rows()), i = any_of(gradient.cols());
    double expected = derivative(name, [&](size_t row, size_t column) {
      return row == static_cast<size_t>(p) && column == static_cast<size_t>(i) ? 1.0 : 0.0;
    });
    EXPECT_NEAR(double{gradient(p, i)}, expected, relative_tolerance() * (largest(gradient) + 0.01)) << name;
  }
}

// What observers see beside the gradients is what the matrices gave, before biases and softcap.
TEST_P(Backward, OutputsAreTheProductsThemselves) {
  std::map<std::string, NaiveRows> expected;
  model_.naive(model_.tensors, inputs(), [&](const std::string& name, NaiveRows& output) { expected[name] = output; });
  for (const auto& [name, output] : found_.outputs) {
    SCOPED_TRACE(name);
    expect_rows(output, expected.at(name), 0, model_.tolerance(largest_value(expected.at(name))));
  }
}

TEST_P(Backward, LookupsNameTheirRows) {
  const TokenBatch batch = window_batch(inputs());
  size_t lookups = 0;
  for (const Node& node : model_.network().nodes)
    if (const auto* gather = std::get_if<op::Gather>(&node.operation)) {
      ++lookups;
      EXPECT_EQ(found_.lookups.at(model_.network().matrix(gather->table).name), looked_up_rows(gather->index, batch));
    }
  EXPECT_EQ(found_.lookups.size(), lookups);
}

TEST_P(Backward, SmallTensorsMatch) {
  const Network& network = model_.network();
  std::set<std::string> seen;
  for (const VectorRule& rule : network.vectors) {
    expect_small(rule.parameter, rule.first, rule.count);
    seen.insert(rule.parameter);
    if (!rule.times.empty() && seen.insert(rule.times).second) expect_small(rule.times, 0, 1);
  }
  for (const Parameter& parameter : network.parameters)
    EXPECT_EQ(seen.contains(parameter.name), parameter.role == Role::kSmall) << parameter.name;
  EXPECT_EQ(small_.size(), seen.size());
}

TEST_P(Backward, WindowsAndThreadsDoNotChangeBits) {
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    CpuGradients window(*model_.weights, model_.context, /*for_gains=*/true);
    GradientRecorder other, again;
    VectorGradients vectors;
    window.run(random_tokens(std::min<int64_t>(model_.window, 2) + 1, model_.vocabulary(), 8), {},
               other);  // leaves its traces in the buffers
    EXPECT_EQ(window.run(tokens_, {}, again, &vectors), loss_);
    for (const auto& [name, gradient] : found_.gradients)
      EXPECT_TRUE(std::ranges::equal(again.gradients.at(name).values(), gradient.values())) << name;
    EXPECT_EQ(stored_gradients(model_.network(), model_.weights->small, vectors), small_);
  }
}

// Outputs and gradients of vectors are asked for by who scales gains; the rest is the same without.
TEST_P(Backward, WhatIsNotAskedForChangesNoBit) {
  CpuGradients window(*model_.weights, model_.context);
  GradientRecorder plain;
  EXPECT_EQ(window.run(tokens_, {}, plain), loss_);
  for (const auto& [name, gradient] : found_.gradients)
    EXPECT_TRUE(std::ranges::equal(plain.gradients.at(name).values(), gradient.values())) << name;
  for (const auto& [name, output] : plain.outputs) EXPECT_EQ(output.rows(), 0) << name;
}

}  // namespace
}  // namespace thimble::backward_test
