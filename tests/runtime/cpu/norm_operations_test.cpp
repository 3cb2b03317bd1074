// norm_operations_test.cpp: norms of rows and of heads, and rotation, of CpuPass against plain loops in float64.
// Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::norm_operations_test {
namespace {

constexpr float kRmsEpsilon = 1.1920929e-7f;
constexpr double kU = kFloatRounding;

// 1 / sqrt(mean(x^2) + epsilon) of columns of row r.
double inverse_rms(const Matrix& x, int64_t r, int64_t first_col, int64_t cols) {
  double sum = 0;
  for (int64_t c = 0; c < cols; ++c) sum += double{x(r, first_col + c)} * double{x(r, first_col + c)};
  return 1 / std::sqrt(sum / static_cast<double>(cols) + double{kRmsEpsilon});
}

// Relative error of inverse_rms in float32 over n columns, with the products that use it.
double rms_relative(int64_t n) { return (static_cast<double>(n) / 2 + 8) * kU; }

SmallNetwork rms_norm_of(const Matrix& x, float factor, const std::vector<float>& gain) {
  SmallNetwork small{
      {x}, x.cols(), {}, [factor, has_gain = !gain.empty()](Ops& ops, const auto& in) {
        return ops.rms_norm(
            in[0], {.epsilon = kRmsEpsilon, .factor = factor, .gain = has_gain ? ops.vector("gain") : Vector{}});
      }};
  if (!gain.empty()) small.tensors["gain"] = {{x.cols()}, gain};
  return small;
}

void expect_normed(const Matrix& normed, const Matrix& x, float factor, const std::vector<float>& gain) {
  std::vector<double> inverse;
  for (int64_t r = 0; r < x.rows(); ++r) inverse.push_back(inverse_rms(x, r, 0, x.cols()));
  auto expected = [&](int64_t r, int64_t k) {
    return double{x(r, k)} * inverse[static_cast<size_t>(r)] * double{factor} *
           (gain.empty() ? 1 : double{gain[static_cast<size_t>(k)]});
  };
  expect_close(normed, expected,
               [&](int64_t r, int64_t k) { return std::abs(expected(r, k)) * rms_relative(x.cols()); });
}

TEST(CpuOperations, RmsNorm) {
  for (const Extent& e : kExtents)
    for (const std::vector<float>& gain : {std::vector<float>{}, random_vector(e.cols, 3)}) {
      const Matrix x = random_matrix(e.rows, e.cols, 1, 10);
      const SmallNetwork small = rms_norm_of(x, 0.7f, gain);
      const Matrix in_place = run_small(small, Inputs::kOwn), apart = run_small(small, Inputs::kViews);
      expect_normed(apart, x, 0.7f, gain);
      EXPECT_TRUE(same_bits(in_place, apart));
    }
}

TEST(CpuOperations, RmsNormOfExtremeRows) {
  constexpr int64_t kWidth = 21;
  // Zeros; a constant; one outlier; far below the epsilon; large.
  const Matrix x = filled(5, kWidth, [](int64_t r, int64_t c) {
    const double rows[] = {0, 3, c == 13 ? 1e4 : 1e-3, 1e-10, c % 2 ? 1e15 : -1e15};
    return rows[r];
  });
  const Matrix y = run_small(rms_norm_of(x, 1, {}), Inputs::kViews);
  expect_normed(y, x, 1, {});
  for (int64_t c = 0; c < kWidth; ++c) EXPECT_EQ(y(0, c), 0);
}

SmallNetwork layer_norm_of(const Matrix& x, const std::vector<float>& weight, const std::vector<float>& bias) {
  return {
      {x}, x.cols(), {{"weight", {{x.cols()}, weight}}, {"bias", {{x.cols()}, bias}}}, [](Ops& ops, const auto& in) {
        return ops.layer_norm(in[0], ops.vector("weight"), ops.vector("bias"), 1e-5f);
      }};
}

// (x - mean) / sqrt(variance + epsilon) * weight + bias in float64. The mean's rounding is one of the row's largest
// magnitude, the variance's a relative one of its length.
void expect_layer_normed(const Matrix& y, const Matrix& x, const std::vector<float>& weight,
                         const std::vector<float>& bias) {
  const auto n = static_cast<double>(x.cols());
  std::vector<double> mean, inverse, largest;
  for (int64_t r = 0; r < x.rows(); ++r) {
    double sum = 0, squares = 0, most = 0;
    for (int64_t c = 0; c < x.cols(); ++c) sum += double{x(r, c)};
    for (int64_t c = 0; c < x.cols(); ++c) {
      squares += std::pow(double{x(r, c)} - sum / n, 2);
      most = std::max(most, std::abs(double{x(r, c)}));
    }
    mean.push_back(sum / n);
    inverse.push_back(1 / std::sqrt(squares / n + double{1e-5f}));
    largest.push_back(most);
  }
  auto scaled = [&](int64_t r, int64_t c) {
    const auto row = static_cast<size_t>(r);
    return (double{x(r, c)} - mean[row]) * inverse[row] * double{weight[static_cast<size_t>(c)]};
  };
  expect_close(
      y, [&](int64_t r, int64_t c) { return scaled(r, c) + double{bias[static_cast<size_t>(c)]}; },
      [&](int64_t r, int64_t c) {
        const auto row = static_cast<size_t>(r);
        const double of_weight = std::abs(double{weight[static_cast<size_t>(c)]});
        const double of_mean = (n / 8 + 4) * largest[row] * inverse[row] * of_weight;
        return kU * (of_mean + (n / 2 + 8) * std::abs(scaled(r, c)) + std::abs(double{bias[static_cast<size_t>(c)]}));
      });
}

TEST(CpuOperations, LayerNorm) {
  for (const Extent& e : kExtents) {
    const Matrix x = random_matrix(e.rows, e.cols, 1, 10);
    const std::vector<float> weight = random_vector(e.cols, 3), bias = random_vector(e.cols, 4);
    const SmallNetwork small = layer_norm_of(x, weight, bias);
    const Matrix in_place = run_small(small, Inputs::kOwn), apart = run_small(small, Inputs::kViews);
    expect_layer_normed(apart, x, weight, bias);
    EXPECT_TRUE(same_bits(in_place, apart));
  }
}

TEST(CpuOperations, LayerNormOfExtremeRows) {
  constexpr int64_t kWidth = 21;
  // Zeros; a constant; one outlier; far below the epsilon; large; a mean that dwarfs the differences.
  const Matrix x = filled(6, kWidth, [](int64_t r, int64_t c) {
    const double rows[] = {
        0, 3, c == 13 ? 1e4 : 1e-3, c % 2 ? 1e-10 : 0, c % 2 ? 1e15 : -1e15, c % 2 ? 1001.0 : 1000.0};
    return rows[r];
  });
  const std::vector<float> weight = random_vector(kWidth, 3), bias = random_vector(kWidth, 4);
  const Matrix y = run_small(layer_norm_of(x, weight, bias), Inputs::kViews);
  expect_layer_normed(y, x, weight, bias);
  for (int64_t c = 0; c < kWidth; ++c) EXPECT_EQ(y(0, c), bias[static_cast<size_t>(c)]);
}

// The norm, the rotation and both gains, in all combinations that have a meaning.
struct HeadsCase {
  int64_t heads, head_dim, half;  // pairs that rotate
  BatchShape batch;
  bool has_norm, has_norm_gain, has_rotation, has_head_gain;
};

struct HeadsTensors {
  Matrix x;
  std::vector<float> norm_gain, head_gain;
};

double frequency(int64_t pair) { return 0.37 / static_cast<double>(pair + 1); }

SmallNetwork heads_of(const HeadsCase& t, const HeadsTensors& tensors) {
  const auto write = [t](Ops& ops, const std::vector<Value>& in) {
    op::Heads options{.head_dim = t.head_dim};
    if (t.has_norm) options.epsilon = kRmsEpsilon;
    if (t.has_norm_gain) options.norm_gain = ops.vector("norm_gain");
    if (t.has_head_gain) options.head_gain = ops.vector("head_gain");
    if (t.has_rotation)
      options.rotary = ops.rotary({2 * t.half, [half = t.half](int64_t) {
                                     std::vector<double> all;
                                     for (int64_t k = 0; k < half; ++k) all.push_back(frequency(k));
                                     return all;
                                   }});
    return ops.heads(in[0], options);
  };
  return {{tensors.x},
          tensors.x.cols(),
          {{"norm_gain", {{t.head_dim}, tensors.norm_gain}}, {"head_gain", {{t.heads}, tensors.head_gain}}},
          write};
}

// Two halves of the first 2 * half dimensions turn; the rest is only normed.
double expected_head(const HeadsCase& t, const HeadsTensors& tensors, int64_t r, int64_t c) {
  const int64_t head = c / t.head_dim, k = c % t.head_dim, p = t.batch.first_position + r % t.batch.positions;
  auto before = [&](int64_t i) {
    double value = double{tensors.x(r, head * t.head_dim + i)};
    if (t.has_norm) value *= inverse_rms(tensors.x, r, head * t.head_dim, t.head_dim);
    if (t.has_norm_gain) value *= double{tensors.norm_gain[static_cast<size_t>(i)]};
    if (t.has_head_gain) value *= double{tensors.head_gain[static_cast<size_t>(head)]};
    return value;
  };
  if (!t.has_rotation || k >= 2 * t.half) return before(k);
  const bool is_first = k < t.half;
  const int64_t pair = is_first ? k : k - t.half;
  const double angle = static_cast<double>(p) * frequency(pair), x1 = before(pair), x2 = before(pair + t.half);
  return is_first ? x1 * std::cos(angle) + x2 * std::sin(angle) : -x1 * std::sin(angle) + x2 * std::cos(angle);
}

void expect_heads(const HeadsCase& t) {
  const HeadsTensors tensors{random_matrix(t.batch.rows(), t.heads * t.head_dim, 1, 3),
                             random_vector(t.head_dim, 4, 0.5, 1), random_vector(t.heads, 2, 0.5, 2)};
  const SmallNetwork small = heads_of(t, tensors);
  for (Inputs how : kAllInputs) {
    const Weights weights = weights_of(small, how);
    CpuCache cache(*weights.network, t.batch.sequences, t.batch.first_position + t.batch.positions);
    // A head's normed elements are at most sqrt(d) * gain, others as large as the input's times the gain.
    const double largest = t.has_norm ? 2 * std::sqrt(static_cast<double>(t.head_dim)) : 6;
    const double relative = t.has_norm ? rms_relative(t.head_dim) + 2 * kU : 3 * kU;
    expect_close(
        run_small(t.batch, weights, cache), [&](int64_t r, int64_t c) { return expected_head(t, tensors, r, c); },
        [&](int64_t, int64_t) { return 2 * largest * relative; });
  }
}

TEST(CpuOperations, NormAndRotationOfHeads) {
  struct Shape {
    int64_t heads, head_dim, half;
    BatchShape batch;
  };
  const Shape shapes[] = {{1, 4, 2, {1, 1, 0}}, {3, 7, 2, {2, 5, 3}}, {2, 64, 8, {1, 9, 100}}, {4, 10, 5, {3, 1, 17}}};
  for (const Shape& s : shapes)
    for (int bits = 0; bits < 16; ++bits) {
      SCOPED_TRACE(::testing::Message() << s.heads << " heads of " << s.head_dim << ", options " << bits);
      const bool has_norm = bits & 1, has_norm_gain = bits & 2;
      if (has_norm_gain && !has_norm) continue;
      expect_heads({s.heads, s.head_dim, s.half, s.batch, has_norm, has_norm_gain, (bits & 4) != 0, (bits & 8) != 0});
    }
}

TEST(CpuOperations, HeadsWithoutOptionsAreTheInput) {
  const HeadsCase t{3, 5, 0, {1, 4, 0}, false, false, false, false};
  const HeadsTensors tensors{random_matrix(4, 15, 1), random_vector(5, 2), random_vector(3, 3)};
  for (Inputs how : kAllInputs) EXPECT_TRUE(same_bits(run_small(heads_of(t, tensors), how), tensors.x));
}

TEST(RotaryTable, HoldsTheAnglesOfEachPosition) {
  const RotaryRule rule{4, [](int64_t context) {
                          EXPECT_EQ(context, 64);
                          return std::vector<double>{1, 0.01};
                        }};
  const RotaryTable table = make_rotary_table(rule, 64);
  ASSERT_EQ(table.cosine.rows(), 64);
  ASSERT_EQ(table.cosine.cols(), 2);
  for (int64_t p : {0, 1, 63}) {
    const auto position = static_cast<double>(p);
    EXPECT_EQ(table.cosine(p, 0), static_cast<float>(std::cos(position)));
    EXPECT_EQ(table.sine(p, 0), static_cast<float>(std::sin(position)));
    EXPECT_EQ(table.cosine(p, 1), static_cast<float>(std::cos(position * 0.01)));
    EXPECT_EQ(table.sine(p, 1), static_cast<float>(std::sin(position * 0.01)));
  }
}

}  // namespace
}  // namespace thimble::norm_operations_test
