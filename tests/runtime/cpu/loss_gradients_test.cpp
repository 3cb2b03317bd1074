// loss_gradients_test.cpp: what backward passes begin with and are made of: losses and their gradients against central
// differences of a plain float64 loss, products and sums against loops. Run once per instruction set (see
// CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gradient_ops.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::loss_gradients_test {
namespace {

constexpr double kStep = 1e-4;

struct LossExtent {
  int64_t rows, cols;
};

MatrixF64 widened(const GuardedMatrix& x) {
  MatrixF64 wide(x.rows(), x.cols());
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t c = 0; c < x.cols(); ++c) wide(r, c) = x(r, c);
  return wide;
}

double largest(const GuardedMatrix& x) {
  double most = 0;
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t c = 0; c < x.cols(); ++c) most = std::max(most, std::abs(double{x(r, c)}));
  return most;
}

// `gradient` is that of loss(x) at `x`: every element, or a spread of them where there are many. The allowance grows
// with the number of terms that float32 sums.
void expect_gradient(const GuardedMatrix& gradient, MatrixF64 x, const std::function<double(const MatrixF64&)>& loss,
                     double terms) {
  EXPECT_TRUE(gradient.guards_intact());
  double allowed = 1e-6 + (terms + 16) * kFloatRounding * std::max(1.0, largest(gradient));
  int64_t count = x.rows() * x.cols(), stride = std::max<int64_t>(1, count / 60);
  for (int64_t i = 0; i < count; i += stride) {
    double& element = x.values()[static_cast<size_t>(i)];
    double before = element;
    element = before + kStep;
    double above = loss(x);
    element = before - kStep;
    double below = loss(x);
    element = before;
    ASSERT_NEAR(gradient(i / x.cols(), i % x.cols()), (above - below) / (2 * kStep), allowed)
        << "row " << i / x.cols() << " column " << i % x.cols();
  }
}

TEST(GradientOps, LinearIsTheProductWithTheMatrix) {
  // More rows and columns than a tile.
  GuardedMatrix dy(300, 37), w(37, 530), dx(300, 530);
  dy.fill_random(1);
  w.fill_random(2);
  auto expected = [&](int64_t p, int64_t k) {
    double sum = 0;
    for (int64_t n = 0; n < 37; ++n) sum += double{dy(p, n)} * w(n, k);
    return sum;
  };
  auto allowed = [](int64_t, int64_t) { return 39 * 37 * kFloatRounding; };
  multiply_nn(dy, w, dx);
  expect_close(dx, expected, allowed);
  GuardedMatrix sum(300, 530);
  sum.fill_random(3);
  GuardedMatrix before = sum;
  multiply_nn(dy, w, sum, true);
  expect_close(
      sum, [&](int64_t p, int64_t k) { return before(p, k) + expected(p, k); }, allowed);
}

// A cap of 0 is none.
double capped(double z, double cap) { return cap == 0 ? z : cap * std::tanh(z / cap); }

TEST(GradientOps, NllThroughTheSoftcap) {
  for (const LossExtent& e : {LossExtent{1, 2}, {3, 17}, {5, 1024}}) {
    for (double cap : {2.0, 30.0, 0.0}) {
      GuardedMatrix z(e.rows, e.cols), dz(e.rows, e.cols);
      z.fill_random(1, 3);
      dz.fill([&](int64_t r, int64_t c) { return capped(double{z(r, c)}, cap); });
      std::vector<Token> targets;
      for (int64_t p = 0; p < e.rows; ++p) targets.push_back(static_cast<Token>((p * 7 + 1) % e.cols));
      auto loss = [&](const MatrixF64& at) {
        double total = 0;
        for (int64_t p = 0; p < at.rows(); ++p) {
          double sum = 0;
          for (int64_t v = 0; v < at.cols(); ++v) sum += std::exp(capped(at(p, v), cap));
          total += std::log(sum) - capped(at(p, targets[static_cast<size_t>(p)]), cap);
        }
        return total;
      };
      double found = nll_backward(dz, targets, static_cast<float>(cap));
      EXPECT_NEAR(found, loss(widened(z)), 1e-5 * static_cast<double>(e.rows));
      // Each element has a sum of the whole row behind it, and logits that were rounded to float32.
      expect_gradient(dz, widened(z), loss, 8 * std::log2(static_cast<double>(e.cols)));
    }
  }
}

TEST(GradientOps, DivergenceFromATeacher) {
  for (const LossExtent& e : {LossExtent{1, 1}, {1, 7}, {3, 17}, {5, 64}, {300, 65}}) {
    for (double cap : {30.0, 2.5, 0.0}) {
      GuardedMatrix z(e.rows, e.cols), teacher(e.rows, e.cols), dz(e.rows, e.cols);
      z.fill([](int64_t r, int64_t c) {
        return 6 * uniform_at(21, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 3;
      });
      teacher.fill([](int64_t r, int64_t c) {
        return 4 * uniform_at(22, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 2;
      });
      dz.fill([&](int64_t r, int64_t c) { return capped(double{z(r, c)}, cap); });
      auto log_sum = [&](const std::function<double(int64_t)>& logit) {
        double sum = 0;
        for (int64_t c = 0; c < e.cols; ++c) sum += std::exp(logit(c));
        return std::log(sum);
      };
      auto loss = [&](const MatrixF64& at) {
        double total = 0;
        for (int64_t r = 0; r < e.rows; ++r) {
          auto logit = [&](int64_t c) { return capped(at(r, c), cap); };
          auto goal = [&](int64_t c) { return double{teacher(r, c)}; };
          const double sum = log_sum(logit), goal_sum = log_sum(goal);
          for (int64_t c = 0; c < e.cols; ++c)
            total += std::exp(goal(c) - goal_sum) * ((goal(c) - goal_sum) - (logit(c) - sum));
        }
        return total;
      };
      double found = divergence_backward(dz, teacher, static_cast<float>(cap));
      EXPECT_NEAR(found, loss(widened(z)), 1e-5 * static_cast<double>(e.rows));
      expect_gradient(dz, widened(z), loss, 8 * std::log2(static_cast<double>(e.cols)));
    }
  }
}

TEST(GradientOps, MixedLogitsAreThoseOfTheMixture) {
  for (const LossExtent& e : {LossExtent{1, 2}, {3, 17}, {40, 65}})
    for (double share : {0.1, 0.9}) {
      GuardedMatrix logits(e.rows, e.cols);
      logits.fill([](int64_t r, int64_t c) {
        return 60 * uniform_at(23, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 30;
      });
      const MatrixF64 before = widened(logits);
      std::vector<Token> next;
      for (int64_t r = 0; r < e.rows; ++r) next.push_back(static_cast<Token>(r % e.cols));
      mix_data(next, share, logits);
      for (int64_t r = 0; r < e.rows; ++r) {
        double sum = 0;
        for (int64_t c = 0; c < e.cols; ++c) sum += std::exp(before(r, c));
        for (int64_t c = 0; c < e.cols; ++c) {
          const double mixed = (1 - share) * std::exp(before(r, c)) / sum + (c == r % e.cols ? share : 0);
          EXPECT_NEAR(std::exp(double{logits(r, c)}), mixed, 1e-5 * mixed + 1e-30);
        }
      }
    }
}

TEST(GradientOps, NllOfACertainTargetHasNoGradient) {
  GuardedMatrix logits(1, 3);
  logits.fill([](int64_t, int64_t c) { return c == 1 ? 29 : -29; });
  EXPECT_NEAR(nll_backward(logits, std::vector<Token>{1}, 30), 0, 1e-12);
  for (int64_t c = 0; c < 3; ++c) EXPECT_NEAR(logits(0, c), 0, 1e-12);
}

TEST(GradientOps, ColumnDotsAreFloat64Sums) {
  GuardedMatrix a(200, 150), b(200, 150);
  a.fill_random(1);
  b.fill_random(2);
  std::vector<double> found = column_dots(a, b);
  ASSERT_EQ(found.size(), 150u);
  for (int64_t c = 0; c < 150; ++c) {
    double sum = 0;
    for (int64_t p = 0; p < 200; ++p) sum += double{a(p, c)} * b(p, c);
    EXPECT_NEAR(found[static_cast<size_t>(c)], sum, 1e-13);
  }
}

}  // namespace
}  // namespace thimble::loss_gradients_test
