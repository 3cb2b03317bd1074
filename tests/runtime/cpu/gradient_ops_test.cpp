// gradient_ops_test.cpp: every operation of the backward pass against central differences of a plain float64 forward
// operation, on awkward widths, between NaN guards. Run once per instruction set (see CMakeLists.txt).
#include "runtime/cpu/gradient_ops.h"

#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/forward.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble {
namespace {

constexpr double kRmsEpsilon = 1.1920929e-7;
constexpr double kStep = 1e-4;

struct Extent {
  int64_t rows, cols;
};
constexpr Extent kExtents[] = {{1, 1}, {1, 7}, {3, 17}, {5, 64}, {300, 65}};

MatrixF64 widened(const GuardedMatrix& x) {
  MatrixF64 wide(x.rows(), x.cols());
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t c = 0; c < x.cols(); ++c) wide(r, c) = x(r, c);
  return wide;
}

std::vector<float> random_vector(int64_t n, uint64_t seed, double low, double high) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<float>(low + (high - low) * uniform_at(seed, 77, static_cast<uint64_t>(i))));
  return values;
}

double dot_all(const MatrixF64& a, const GuardedMatrix& b) {
  double sum = 0;
  for (int64_t r = 0; r < a.rows(); ++r)
    for (int64_t c = 0; c < a.cols(); ++c) sum += a(r, c) * b(r, c);
  return sum;
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

MatrixF64 rms(const MatrixF64& x, int64_t width, double c) {
  MatrixF64 y = x;
  for (int64_t r = 0; r < x.rows(); ++r)
    for (int64_t first = 0; first < x.cols(); first += width) {
      double sum = 0;
      for (int64_t i = first; i < first + width; ++i) sum += x(r, i) * x(r, i);
      for (int64_t i = first; i < first + width; ++i)
        y(r, i) *= c / std::sqrt(sum / static_cast<double>(width) + kRmsEpsilon);
    }
  return y;
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
  linear_backward(dy, w, dx);
  expect_close(dx, expected, allowed);
  GuardedMatrix sum(300, 530);
  sum.fill_random(3);
  GuardedMatrix before = sum;
  linear_backward_add(dy, w, sum);
  expect_close(
      sum, [&](int64_t p, int64_t k) { return before(p, k) + expected(p, k); }, allowed);
}

TEST(GradientOps, ScaleMultipliesColumns) {
  GuardedMatrix dy(4, 19), dx(4, 19);
  dy.fill_random(1);
  std::vector<float> scale = random_vector(19, 2, -2, 2);
  scale_backward(dy, scale, dx);
  auto expected = [&](int64_t r, int64_t c) { return double{dy(r, c)} * scale[static_cast<size_t>(c)]; };
  auto allowed = [](int64_t, int64_t) { return 2 * kFloatRounding; };
  expect_close(dx, expected, allowed);
  GuardedMatrix in_place = dy;
  scale_backward(in_place, scale, in_place);
  EXPECT_EQ(in_place, dx);
}

TEST(GradientOps, RmsNorm) {
  for (const Extent& e : kExtents) {
    GuardedMatrix x(e.rows, e.cols), dy(e.rows, e.cols), dx(e.rows, e.cols);
    x.fill_random(1);
    dy.fill_random(2);
    GuardedMatrix before = dx.fill_random(3);
    rms_norm_backward(x, 0.7f, dy, dx);
    expect_gradient(
        dx, widened(x),
        [&](const MatrixF64& at) { return dot_all(rms(at, e.cols, double{0.7f}), dy) + dot_all(at, before); },
        static_cast<double>(4 * e.cols));
  }
}

TEST(GradientOps, RmsNormOfZerosIsFinite) {
  GuardedMatrix x(1, 5), dy(1, 5), dx(1, 5);
  x.fill([](int64_t, int64_t) { return 0; });
  dy.fill_random(1);
  dx.fill([](int64_t, int64_t) { return 0; });
  rms_norm_backward(x, 1, dy, dx);
  double scale = 1 / std::sqrt(kRmsEpsilon);
  expect_close(
      dx, [&](int64_t r, int64_t c) { return scale * dy(r, c); },
      [&](int64_t, int64_t) { return 4 * scale * kFloatRounding; });
}

TEST(GradientOps, LeakyReluSquared) {
  for (const Extent& e : kExtents) {
    GuardedMatrix z(e.rows, e.cols), dz(e.rows, e.cols);
    z.fill_random(1, 2);
    GuardedMatrix dy = dz.fill_random(2);
    leaky_relu_squared_backward(z, dz);
    auto slope = [](double v) { return v > 0 ? 2 * v : v / 2; };
    expect_close(
        dz, [&](int64_t r, int64_t c) { return slope(z(r, c)) * dy(r, c); },
        [](int64_t, int64_t) { return 4 * kFloatRounding * 4; });
  }
}

// Heads of width 6, of which `rope_dims` rotate.
MatrixF64 normed_and_rotated(const MatrixF64& x, const RotaryTable& table, std::span<const float> gain) {
  MatrixF64 y = rms(x, 6, 1);
  int64_t half = table.cosine.cols();
  for (int64_t p = 0; p < x.rows(); ++p)
    for (int64_t first = 0; first < x.cols(); first += 6) {
      for (int64_t k = 0; k < half; ++k) {
        double a = y(p, first + k), b = y(p, first + half + k), cosine = table.cosine(p, k), sine = table.sine(p, k);
        y(p, first + k) = a * cosine + b * sine;
        y(p, first + half + k) = b * cosine - a * sine;
      }
      for (int64_t i = first; i < first + 6 && !gain.empty(); ++i) y(p, i) *= gain[static_cast<size_t>(first / 6)];
    }
  return y;
}

TEST(GradientOps, NormAndRotate) {
  ModelConfig config;
  config.rope_base = 100;
  config.rope_train_seq_len = 64;
  for (int64_t rope_dims : {4, 6}) {
    config.rope_dims = rope_dims;
    RotaryTable table = make_rotary_table(config, 9);
    for (const std::vector<float>& gain : {std::vector<float>{}, {1.5f, -0.3f, 0}}) {
      GuardedMatrix x(9, 18), dx(9, 18);
      x.fill_random(1);
      GuardedMatrix dy = dx.fill_random(2);
      norm_and_rotate_backward(x, 6, table, gain, dx);
      expect_gradient(
          dx, widened(x), [&](const MatrixF64& at) { return dot_all(normed_and_rotated(at, table, gain), dy); }, 40);
    }
  }
}

TEST(GradientOps, Smear) {
  for (const Extent& e : kExtents) {
    GuardedMatrix x(e.rows, e.cols), dy(e.rows, e.cols), dx(e.rows, e.cols);
    x.fill_random(1);
    dy.fill_random(2);
    std::vector<float> gate = random_vector(e.cols, 3, 0, 1);
    smear_backward(dy, gate, dx);
    expect_gradient(
        dx, widened(x),
        [&](const MatrixF64& at) {
          double loss = 0;
          for (int64_t p = 0; p < at.rows(); ++p)
            for (int64_t c = 0; c < at.cols(); ++c) {
              double g = gate[static_cast<size_t>(c)], before = p > 0 ? at(p - 1, c) : 0;
              loss += dy(p, c) * ((1 - g) * at(p, c) + g * before);
            }
          return loss;
        },
        4);
  }
}

TEST(GradientOps, NllThroughTheSoftcap) {
  for (const Extent& e : {Extent{1, 2}, {3, 17}, {5, 1024}}) {
    for (double cap : {2.0, 30.0}) {
      GuardedMatrix z(e.rows, e.cols), dz(e.rows, e.cols);
      z.fill_random(1, 3);
      dz.fill([&](int64_t r, int64_t c) { return cap * std::tanh(z(r, c) / cap); });
      std::vector<uint16_t> targets;
      for (int64_t p = 0; p < e.rows; ++p) targets.push_back(static_cast<uint16_t>((p * 7 + 1) % e.cols));
      auto loss = [&](const MatrixF64& at) {
        double total = 0;
        for (int64_t p = 0; p < at.rows(); ++p) {
          double sum = 0;
          for (int64_t v = 0; v < at.cols(); ++v) sum += std::exp(cap * std::tanh(at(p, v) / cap));
          total += std::log(sum) - cap * std::tanh(at(p, targets[static_cast<size_t>(p)]) / cap);
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
  for (const Extent& e : kExtents) {
    for (double cap : {30.0, 2.5}) {
      GuardedMatrix z(e.rows, e.cols), teacher(e.rows, e.cols), dz(e.rows, e.cols);
      z.fill([](int64_t r, int64_t c) {
        return 6 * uniform_at(21, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 3;
      });
      teacher.fill([](int64_t r, int64_t c) {
        return 4 * uniform_at(22, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 2;
      });
      dz.fill([&](int64_t r, int64_t c) { return cap * std::tanh(double{z(r, c)} / cap); });
      auto log_sum = [&](const std::function<double(int64_t)>& logit) {
        double sum = 0;
        for (int64_t c = 0; c < e.cols; ++c) sum += std::exp(logit(c));
        return std::log(sum);
      };
      auto loss = [&](const MatrixF64& at) {
        double total = 0;
        for (int64_t r = 0; r < e.rows; ++r) {
          auto logit = [&](int64_t c) { return cap * std::tanh(at(r, c) / cap); };
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

TEST(GradientOps, NllOfACertainTargetHasNoGradient) {
  GuardedMatrix logits(1, 3);
  logits.fill([](int64_t, int64_t c) { return c == 1 ? 29 : -29; });
  EXPECT_NEAR(nll_backward(logits, std::vector<uint16_t>{1}, 30), 0, 1e-12);
  for (int64_t c = 0; c < 3; ++c) EXPECT_NEAR(logits(0, c), 0, 1e-12);
}

// Queries, keys and values of one window.
struct Window {
  MatrixF64 q, k, v;
};

double attention_loss(const Window& at, const AttentionShape& shape, const GuardedMatrix& dy) {
  int64_t d = shape.head_dim;
  double loss = 0;
  for (int64_t p = 0; p < at.q.rows(); ++p)
    for (int64_t head = 0; head < shape.heads; ++head) {
      int64_t q_col = head * d, kv_col = head / (shape.heads / shape.kv_heads) * d;
      std::vector<double> y(static_cast<size_t>(d)), weights;
      double sum = 0;
      for (int64_t j = 0; j <= p; ++j) {
        double score = 0;
        for (int64_t i = 0; i < d; ++i) score += at.q(p, q_col + i) * at.k(j, kv_col + i);
        weights.push_back(std::exp(score / std::sqrt(static_cast<double>(d))));
        sum += weights.back();
      }
      for (int64_t j = 0; j <= p; ++j)
        for (int64_t i = 0; i < d; ++i)
          y[static_cast<size_t>(i)] += weights[static_cast<size_t>(j)] / sum * at.v(j, kv_col + i);
      double along = 0, square = 0;
      for (int64_t i = 0; i < d; ++i) {
        along += y[static_cast<size_t>(i)] * at.v(p, kv_col + i);
        square += at.v(p, kv_col + i) * at.v(p, kv_col + i);
      }
      if (!shape.exclusive) along = 0;
      for (int64_t i = 0; i < d; ++i)
        loss += dy(p, q_col + i) * (y[static_cast<size_t>(i)] - along * at.v(p, kv_col + i) / square);
    }
  return loss;
}

struct AttentionGradients {
  GuardedMatrix dq, dk, dv;
};

AttentionGradients attention_gradients(const GuardedMatrix& q, const GuardedMatrix& k, const GuardedMatrix& v,
                                       const AttentionShape& shape, const GuardedMatrix& dy) {
  AttentionGradients found{{q.rows(), q.cols()}, {k.rows(), k.cols()}, {k.rows(), k.cols()}};
  attention_backward(q, k, v, shape, dy, found.dq, found.dk, found.dv);
  return found;
}

struct AttentionCase {
  int64_t positions;
  AttentionShape shape;
};

class AttentionGradient : public testing::TestWithParam<AttentionCase> {
 protected:
  AttentionGradient() {
    q_.fill_random(1, 2);
    k_.fill_random(2, 2);
    v_.fill_random(3);
    dy_.fill_random(4);
  }
  const AttentionShape shape_ = GetParam().shape;
  const int64_t width_ = shape_.heads * shape_.head_dim, kv_width_ = shape_.kv_heads * shape_.head_dim;
  GuardedMatrix q_{GetParam().positions, width_}, k_{GetParam().positions, kv_width_};
  GuardedMatrix v_{GetParam().positions, kv_width_}, dy_{GetParam().positions, width_};
};

// One query; one head; grouped heads; several query tiles, as many as parts and more.
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradient,
                         testing::Values(AttentionCase{1, {1, 1, 3, false}}, AttentionCase{1, {2, 1, 8, true}},
                                         AttentionCase{9, {1, 1, 5, true}}, AttentionCase{12, {4, 2, 6, false}},
                                         AttentionCase{12, {6, 2, 5, true}}, AttentionCase{12, {3, 3, 16, true}},
                                         AttentionCase{130, {2, 1, 4, true}}, AttentionCase{700, {1, 1, 4, true}}));

TEST_P(AttentionGradient, MatchesCentralDifferences) {
  AttentionGradients found = attention_gradients(q_, k_, v_, shape_, dy_);
  Window at{widened(q_), widened(k_), widened(v_)};
  auto terms = static_cast<double>(8 * shape_.head_dim + GetParam().positions);
  auto loss_of = [&](MatrixF64 Window::*member) {
    return [&, member](const MatrixF64& x) {
      Window other = at;
      other.*member = x;
      return attention_loss(other, shape_, dy_);
    };
  };
  expect_gradient(found.dq, at.q, loss_of(&Window::q), terms);
  expect_gradient(found.dk, at.k, loss_of(&Window::k), terms);
  expect_gradient(found.dv, at.v, loss_of(&Window::v), terms);
}

TEST_P(AttentionGradient, ThreadsDoNotChangeBits) {
  AttentionGradients first = attention_gradients(q_, k_, v_, shape_, dy_);
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    AttentionGradients again = attention_gradients(q_, k_, v_, shape_, dy_);
    EXPECT_EQ(again.dq, first.dq);
    EXPECT_EQ(again.dk, first.dk);
    EXPECT_EQ(again.dv, first.dv);
  }
}

TEST(GradientOps, ExclusiveAttentionOfAZeroValueIsFinite) {
  GuardedMatrix q(3, 4), k(3, 4), v(3, 4), dy(3, 4);
  q.fill_random(1);
  k.fill_random(2);
  v.fill([](int64_t, int64_t) { return 0; });
  dy.fill_random(3);
  AttentionGradients found = attention_gradients(q, k, v, {1, 1, 4, true}, dy);
  for (const GuardedMatrix* gradient : {&found.dq, &found.dk, &found.dv})
    for (int64_t p = 0; p < 3; ++p)
      for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite((*gradient)(p, i)));
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
}  // namespace thimble
