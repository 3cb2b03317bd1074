// activation_operations_test.cpp: activations, gates, softcap and log-softmax of the CPU's passes and scorer against
// plain loops in float64. Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/base/parallel.h"
#include "runtime/base/random.h"
#include "runtime/cpu/cpu_models.h"
#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/ops/naive_network.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::activation_operations_test {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kU = kFloatRounding;

SmallNetwork activation_of(Activation activation, const Matrix& z) {
  return {{z}, z.cols(), {}, [activation](Ops& ops, const auto& in) { return ops.activate(activation, in[0]); }};
}

TEST(CpuOperations, LeakyReluSquared) {
  for (const Extent& e : kExtents) {
    const Matrix z = random_matrix(e.rows, e.cols, 1, 3);
    auto expected = [&](int64_t r, int64_t c) {
      double value = z(r, c) > 0 ? double{z(r, c)} : 0.5 * double{z(r, c)};
      return value * value;
    };
    for (Inputs how : kAllInputs)
      expect_close(run_small(activation_of(Activation::kLeakyReluSquared, z), how), expected,
                   [&](int64_t r, int64_t c) { return 2 * kU * expected(r, c); });
  }
}

// Every size from denormal activations to where the functions are 0 or z.
Matrix of_every_size(const Extent& e) {
  return filled(e.rows, e.cols, [](int64_t r, int64_t c) {
    const double magnitude = std::exp2(20 * uniform_at(5, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 16);
    return c % 2 ? magnitude : -magnitude;
  });
}

// The exponent's rounding is relative to itself.
void expect_sigmoid_product(Activation activation, const Matrix& z, const std::function<double(double)>& exponent) {
  auto expected = [&](int64_t r, int64_t c) { return naive_activation(activation, double{z(r, c)}); };
  for (Inputs how : kAllInputs)
    expect_close(run_small(activation_of(activation, z), how), expected, [&](int64_t r, int64_t c) {
      return kU * std::abs(expected(r, c)) * (8 + 8 * std::abs(exponent(double{z(r, c)}))) + 1e-37;
    });
}

TEST(CpuOperations, Gelu) {
  for (const Extent& e : kExtents)
    expect_sigmoid_product(Activation::kGeluTanh, of_every_size(e), [](double v) { return v + 0.044715 * v * v * v; });
}

TEST(CpuOperations, Silu) {
  for (const Extent& e : kExtents)
    expect_sigmoid_product(Activation::kSilu, of_every_size(e), [](double v) { return v; });
}

TEST(CpuOperations, ActivationsOfLargeValuesAreZeroOrTheValue) {
  const double values[] = {-1e30, -100, 100, 1e30};
  for (Activation activation : {Activation::kGeluTanh, Activation::kSilu})
    for (Inputs how : kAllInputs) {
      const Matrix y =
          run_small(activation_of(activation, filled(1, 4, [&](int64_t, int64_t c) { return values[c]; })), how);
      EXPECT_EQ(y(0, 0), 0);
      EXPECT_NEAR(y(0, 1), 0, activation == Activation::kSilu ? 1e-41 : 0);  // exp(-100) is not 0 in float32
      EXPECT_EQ(y(0, 2), 100);
      EXPECT_EQ(y(0, 3), 1e30f);
    }
}

TEST(CpuOperations, GatesMultiplyByTheActivation) {
  for (Activation activation : {Activation::kLeakyReluSquared, Activation::kGeluTanh, Activation::kSilu})
    for (const Extent& e : kExtents) {
      const Matrix x = random_matrix(e.rows, e.cols, 1, 3), a = random_matrix(e.rows, e.cols, 2);
      const SmallNetwork small{
          {x, a}, e.cols, {}, [=](Ops& ops, const auto& in) { return ops.gate(activation, in[0], in[1]); }};
      auto expected = [&](int64_t r, int64_t c) {
        return naive_activation(activation, double{x(r, c)}) * double{a(r, c)};
      };
      // Exponents are below 3 + 0.044715 * 27.
      for (Inputs how : kAllInputs)
        expect_close(run_small(small, how), expected,
                     [&](int64_t r, int64_t c) { return (9 + 8 * 4.3) * kU * std::abs(expected(r, c)) + 1e-37; });
    }
}

// A head whose logits are the elements of z (rows, columns), exactly: every row of its input has a single 1.
Weights head_of(const Matrix& z, float softcap) {
  Ops ops({{"rows", {z.rows(), z.rows()}, Role::kTable}, {"head", {z.cols(), z.rows()}, Role::kHead}});
  const Value rows = ops.gather("rows");
  auto network = std::make_shared<const Network>(std::move(ops).head(rows, "head", softcap));
  FloatTensors tensors{{"rows", std::vector<float>(static_cast<size_t>(z.rows() * z.rows()))},
                       {"head", std::vector<float>(static_cast<size_t>(z.rows() * z.cols()))}};
  for (int64_t r = 0; r < z.rows(); ++r) {
    tensors["rows"][static_cast<size_t>(r * (z.rows() + 1))] = 1;
    for (int64_t c = 0; c < z.cols(); ++c) tensors["head"][static_cast<size_t>(c * z.rows() + r)] = z(r, c);
  }
  return bind_weights(network, std::move(tensors));
}

GuardedMatrix capped(const Matrix& z, float cap) {
  const Weights weights = head_of(z, cap);
  CpuPass pass(weights, z.rows());
  GuardedMatrix logits(z.rows(), z.cols());
  pass.logits(pass.run(row_batch({1, z.rows(), 0})), logits);
  EXPECT_TRUE(logits.guards_intact());
  return logits;
}

GuardedMatrix log_softmax(const Matrix& z) {
  const auto scorer = make_cpu_scorer(std::make_shared<const Weights>(head_of(z, 0)), Numerics::kFp32, z.rows());
  GuardedMatrix rows(z.rows(), z.cols());
  scorer->log_probabilities(row_batch({1, z.rows(), 0}).tokens, rows);
  EXPECT_TRUE(rows.guards_intact());
  return rows;
}

TEST(CpuOperations, WithoutASoftcapLogitsAreTheProduct) {
  const Matrix z = random_matrix(5, 17, 1, 100);
  const GuardedMatrix found = capped(z, 0);
  expect_close(
      ConstMatrixView(found), [&](int64_t r, int64_t c) { return double{z(r, c)}; },
      [](int64_t, int64_t) { return 0.0; });
}

// tanh is a rational approximation, good to a few units in the last place.
TEST(CpuOperations, Softcap) {
  for (const Extent& e : kExtents) {
    const Matrix z = filled(e.rows, e.cols, [](int64_t r, int64_t c) {
      return 300 * std::pow(2 * uniform_at(1, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 1, 5);
    });
    auto expected = [&](int64_t r, int64_t c) { return 30 * std::tanh(double{z(r, c)} / 30.0); };
    expect_close(capped(z, 30), expected, [&](int64_t r, int64_t c) { return 16 * kU * std::abs(expected(r, c)); });
  }
}

TEST(CpuOperations, SoftcapOfExtremeValues) {
  const float values[] = {0.0f, -0.0f, 1e-30f, 1e30f, -1e30f, kInfinity, -kInfinity, 29.0f, 1000.0f};
  const double expected[] = {0, 0, 1e-30, 30, -30, 30, -30, 30 * std::tanh(29.0 / 30), 30};
  expect_close(
      capped(filled(1, 9, [&](int64_t, int64_t c) { return double{values[c]}; }), 30),
      [&](int64_t, int64_t c) { return expected[c]; },
      [&](int64_t, int64_t c) { return 16 * kU * std::abs(expected[c]); });
}

TEST(CpuOperations, LogSoftmax) {
  for (double scale : {1.0, 30.0, 1e4}) {
    for (const Extent& e : kExtents) {
      const Matrix before = random_matrix(e.rows, e.cols, 1, scale);
      std::vector<double> log_sum;
      for (int64_t r = 0; r < e.rows; ++r) {
        double peak = double{*std::max_element(before.row(r), before.row(r) + e.cols)}, sum = 0;
        for (int64_t c = 0; c < e.cols; ++c) sum += std::exp(double{before(r, c)} - peak);
        log_sum.push_back(peak + std::log(sum));
      }
      // Relative error of a sum of n exponentials, and the roundings of peak + log sum and of the difference.
      double sum_error = (static_cast<double>(e.cols) + 8) * kU;
      expect_close(
          log_softmax(before),
          [&](int64_t r, int64_t c) { return double{before(r, c)} - log_sum[static_cast<size_t>(r)]; },
          [&](int64_t, int64_t) { return sum_error + 6 * kU * scale; });
    }
  }
}

TEST(CpuOperations, LogSoftmaxOfOneLikelyTokenIsZeroThere) {
  const GuardedMatrix x = log_softmax(filled(1, 13, [](int64_t, int64_t c) { return c == 5 ? 1e30 : -1e30; }));
  EXPECT_EQ(x(0, 5), 0);
  EXPECT_EQ(x(0, 0), -2e30f);
}

// A damaged weight must show in the loss, not vanish in a maximum or a clamp.
TEST(CpuOperations, NanIsNeverSwallowed) {
  for (int64_t width : {1, 5, 8, 16, 33}) {
    for (int64_t at = 0; at < width; ++at) {
      SCOPED_TRACE(::testing::Message() << "column " << at << " of " << width);
      const Matrix poisoned = filled(1, width, [&](int64_t, int64_t c) { return c == at ? double{kNaN} : 0.5; });
      EXPECT_TRUE(std::isnan(capped(poisoned, 30)(0, at)));
      const GuardedMatrix scores = log_softmax(poisoned);
      const SmallNetwork norm{
          {poisoned}, width, {}, [](Ops& ops, const auto& in) { return ops.rms_norm(in[0], {.epsilon = 1e-7f}); }};
      const SmallNetwork layer{
          {poisoned}, width, {{"one", {{width}, random_vector(width, 1)}}}, [](Ops& ops, const auto& in) {
            return ops.layer_norm(in[0], ops.vector("one"), ops.vector("one"), 1e-5f);
          }};
      for (Inputs how : kAllInputs) {
        for (Activation activation : {Activation::kLeakyReluSquared, Activation::kGeluTanh, Activation::kSilu})
          EXPECT_TRUE(std::isnan(run_small(activation_of(activation, poisoned), how)(0, at)));
        const Matrix normed = run_small(norm, how), layer_normed = run_small(layer, how);
        for (int64_t c = 0; c < width; ++c) {
          EXPECT_TRUE(std::isnan(scores(0, c)));
          EXPECT_TRUE(std::isnan(normed(0, c)));
          EXPECT_TRUE(std::isnan(layer_normed(0, c)));
        }
      }
    }
  }
}

TEST(CpuOperations, ThreadsDoNotChangeBits) {
  const Matrix w = random_matrix(70, 129, 2);
  const SmallNetwork small{{random_matrix(300, 129, 1)},
                           70,
                           {{"w", {{70, 129}, {w.values().begin(), w.values().end()}, Role::kLinear}}},
                           [](Ops& ops, const auto& in) {
                             const Value x = ops.rms_norm(in[0], {.epsilon = 1e-7f});
                             return ops.linear(ops.activate(Activation::kLeakyReluSquared, x), "w");
                           }};
  std::vector<Matrix> results;
  std::vector<GuardedMatrix> scores;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    results.push_back(run_small(small, Inputs::kOwn));
    capped(results.back(), 5);
    scores.push_back(log_softmax(results.back()));
  }
  for (size_t i : {size_t{1}, size_t{2}}) {
    EXPECT_TRUE(same_bits(results[i], results[0]));
    EXPECT_EQ(scores[i], scores[0]);
  }
}

}  // namespace
}  // namespace thimble::activation_operations_test
