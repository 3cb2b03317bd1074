// backend_test.cpp: every row operation and product of the CPU backend against plain loops in float64, on awkward
// widths. Outputs start as NaN and lie between NaN guards. Attention has its own file, attention_test.cpp.
// Run once per instruction set (see CMakeLists.txt).
#include "runtime/cpu/backend.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "runtime/base/parallel.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kRmsEpsilon = 1.1920929e-7;
constexpr double kU = kFloatRounding;

struct Extent {
  int64_t rows, cols;
};
// One element, remainders of every vector width, several chunks of rows, a row wider than a chunk.
constexpr Extent kExtents[] = {{1, 1}, {1, 7}, {3, 17}, {5, 64}, {2, 129}, {300, 65}, {2, 17000}};

class BackendTest : public testing::Test {
 protected:
  Backend& backend() { return *backend_; }
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};

std::vector<float> random_vector(int64_t n, uint64_t seed, double low = -1, double high = 1) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i)
    values.push_back(static_cast<float>(low + (high - low) * uniform_at(seed, 99, static_cast<uint64_t>(i))));
  return values;
}

// 1 / sqrt(mean(x^2) + epsilon) of row r.
double inverse_rms(const GuardedMatrix& x, int64_t r, int64_t first_col, int64_t cols) {
  double sum = 0;
  for (int64_t c = 0; c < cols; ++c) sum += double{x(r, first_col + c)} * x(r, first_col + c);
  return 1 / std::sqrt(sum / static_cast<double>(cols) + kRmsEpsilon);
}

// Relative error of inverse_rms in float32 over n columns, with the products that use it.
double rms_relative(int64_t n) { return (static_cast<double>(n) / 2 + 8) * kU; }

void expect_normed(const GuardedMatrix& normed, const GuardedMatrix& x, float c) {
  std::vector<double> inverse;
  for (int64_t r = 0; r < x.rows(); ++r) inverse.push_back(inverse_rms(x, r, 0, x.cols()));
  auto expected = [&](int64_t r, int64_t k) { return x(r, k) * inverse[static_cast<size_t>(r)] * c; };
  expect_close(normed, expected,
               [&](int64_t r, int64_t k) { return std::abs(expected(r, k)) * rms_relative(x.cols()); });
}

TEST_F(BackendTest, NamesItsInstructionSet) { EXPECT_TRUE(backend().name().starts_with("cpu (")); }

TEST_F(BackendTest, CopyIsExact) {
  for (const Extent& e : kExtents) {
    GuardedMatrix from(e.rows, e.cols), to(e.rows, e.cols);
    backend().copy(from.fill_random(1), to);
    EXPECT_EQ(to, from);
    EXPECT_TRUE(to.guards_intact());
  }
}

TEST_F(BackendTest, GatherTakesRowsInAnyOrder) {
  GuardedMatrix table(7, 33), out(9, 33);
  table.fill_random(1);
  std::vector<int32_t> index = {6, 0, 0, 3, 6, 1, 2, 5, 4};
  backend().gather_rows(table, index, out);
  expect_close(
      out, [&](int64_t r, int64_t c) { return table(index[static_cast<size_t>(r)], c); },
      [](int64_t, int64_t) { return 0.0; });
}

TEST_F(BackendTest, LinearMultipliesByTheTranspose) {
  GuardedMatrix x(5, 37), w(19, 37), y(5, 19);
  x.fill_random(1);
  w.fill_random(2);
  backend().linear(x, w, y);
  auto sum = [&](int64_t r, int64_t n, bool magnitude) {
    double total = 0;
    for (int64_t k = 0; k < 37; ++k) {
      double term = double{x(r, k)} * w(n, k);
      total += magnitude ? std::abs(term) : term;
    }
    return total;
  };
  expect_close(
      y, [&](int64_t r, int64_t n) { return sum(r, n, false); },
      [&](int64_t r, int64_t n) { return 39 * kU * sum(r, n, true); });
}

TEST_F(BackendTest, AddScaled) {
  for (const Extent& e : kExtents) {
    GuardedMatrix a(e.rows, e.cols), x(e.rows, e.cols);
    a.fill_random(1);
    GuardedMatrix before = x.fill_random(2);
    backend().add_scaled(a, -1.7f, x);
    expect_close(
        x, [&](int64_t r, int64_t c) { return before(r, c) + double{-1.7f} * a(r, c); },
        [&](int64_t r, int64_t c) { return 2 * kU * (std::abs(before(r, c)) + 1.7 * std::abs(a(r, c))); });
  }
}

TEST_F(BackendTest, AddScalesByColumn) {
  for (const Extent& e : kExtents) {
    GuardedMatrix a(e.rows, e.cols), x(e.rows, e.cols);
    a.fill_random(1);
    GuardedMatrix before = x.fill_random(2);
    std::vector<float> scale = random_vector(e.cols, 3);
    auto scaled = [&](int64_t r, int64_t c) { return double{scale[static_cast<size_t>(c)]} * a(r, c); };
    backend().add(a, scale, x);
    expect_close(
        x, [&](int64_t r, int64_t c) { return before(r, c) + scaled(r, c); },
        [&](int64_t r, int64_t c) { return 2 * kU * (std::abs(before(r, c)) + std::abs(scaled(r, c))); });
  }
}

TEST_F(BackendTest, RmsNorm) {
  for (const Extent& e : kExtents) {
    GuardedMatrix x(e.rows, e.cols), y(e.rows, e.cols);
    backend().rms_norm(x.fill_random(1, 10), 0.7f, y);
    expect_normed(y, x, 0.7f);
    GuardedMatrix in_place = x;
    backend().rms_norm(in_place, 0.7f, in_place);
    EXPECT_EQ(in_place, y);
  }
}

TEST_F(BackendTest, RmsNormOfExtremeRows) {
  constexpr int64_t kWidth = 21;
  // Zeros; a constant; one outlier; far below the epsilon; large.
  GuardedMatrix x(5, kWidth), y(5, kWidth);
  x.fill([](int64_t r, int64_t c) {
    const double rows[] = {0, 3, c == 13 ? 1e4 : 1e-3, 1e-10, c % 2 ? 1e15 : -1e15};
    return rows[r];
  });
  backend().rms_norm(x, 1.0f, y);
  expect_normed(y, x, 1.0f);
  for (int64_t c = 0; c < kWidth; ++c) EXPECT_EQ(y(0, c), 0);
}

TEST_F(BackendTest, AddBiasIsForEveryRow) {
  for (const Extent& e : kExtents) {
    GuardedMatrix y(e.rows, e.cols);
    GuardedMatrix before = y.fill_random(2);
    const std::vector<float> bias = random_vector(e.cols, 3);
    backend().add_bias(bias, y);
    expect_close(
        y, [&](int64_t r, int64_t c) { return double{before(r, c)} + bias[static_cast<size_t>(c)]; },
        [&](int64_t, int64_t) { return 2 * kU; });
  }
}

// (x - mean) / sqrt(variance + epsilon) * weight + bias in float64. The mean's rounding is one of the row's largest
// magnitude, the variance's a relative one of its length.
void expect_layer_normed(const GuardedMatrix& y, const GuardedMatrix& x, const std::vector<float>& weight,
                         const std::vector<float>& bias, double epsilon) {
  const auto n = static_cast<double>(x.cols());
  std::vector<double> mean, inverse, largest;
  for (int64_t r = 0; r < x.rows(); ++r) {
    double sum = 0, squares = 0, most = 0;
    for (int64_t c = 0; c < x.cols(); ++c) sum += x(r, c);
    for (int64_t c = 0; c < x.cols(); ++c) {
      squares += std::pow(x(r, c) - sum / n, 2);
      most = std::max(most, std::abs(double{x(r, c)}));
    }
    mean.push_back(sum / n);
    inverse.push_back(1 / std::sqrt(squares / n + epsilon));
    largest.push_back(most);
  }
  auto scaled = [&](int64_t r, int64_t c) {
    const auto row = static_cast<size_t>(r);
    return (x(r, c) - mean[row]) * inverse[row] * weight[static_cast<size_t>(c)];
  };
  expect_close(
      y, [&](int64_t r, int64_t c) { return scaled(r, c) + bias[static_cast<size_t>(c)]; },
      [&](int64_t r, int64_t c) {
        const auto row = static_cast<size_t>(r);
        const double of_mean = (n / 8 + 4) * largest[row] * inverse[row] * std::abs(weight[static_cast<size_t>(c)]);
        return kU * (of_mean + (n / 2 + 8) * std::abs(scaled(r, c)) + std::abs(bias[static_cast<size_t>(c)]));
      });
}

TEST_F(BackendTest, LayerNorm) {
  for (const Extent& e : kExtents) {
    GuardedMatrix x(e.rows, e.cols), y(e.rows, e.cols);
    const std::vector<float> weight = random_vector(e.cols, 3), bias = random_vector(e.cols, 4);
    backend().layer_norm(x.fill_random(1, 10), weight, bias, 1e-5f, y);
    expect_layer_normed(y, x, weight, bias, double{1e-5f});
    GuardedMatrix in_place = x;
    backend().layer_norm(in_place, weight, bias, 1e-5f, in_place);
    EXPECT_EQ(in_place, y);
  }
}

TEST_F(BackendTest, LayerNormOfExtremeRows) {
  constexpr int64_t kWidth = 21;
  // Zeros; a constant; one outlier; far below the epsilon; large; a mean that dwarfs the differences.
  GuardedMatrix x(6, kWidth), y(6, kWidth);
  x.fill([](int64_t r, int64_t c) {
    const double rows[] = {
        0, 3, c == 13 ? 1e4 : 1e-3, c % 2 ? 1e-10 : 0, c % 2 ? 1e15 : -1e15, c % 2 ? 1001.0 : 1000.0};
    return rows[r];
  });
  const std::vector<float> weight = random_vector(kWidth, 3), bias = random_vector(kWidth, 4);
  backend().layer_norm(x, weight, bias, 1e-5f, y);
  expect_layer_normed(y, x, weight, bias, double{1e-5f});
  for (int64_t c = 0; c < kWidth; ++c) EXPECT_EQ(y(0, c), bias[static_cast<size_t>(c)]);
}

TEST_F(BackendTest, Gelu) {
  for (const Extent& e : kExtents) {
    GuardedMatrix z(e.rows, e.cols);
    // Every size from denormal activations to where the function is 0 or z.
    GuardedMatrix before = z.fill([](int64_t r, int64_t c) {
      const double magnitude = std::exp2(20 * uniform_at(5, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 16);
      return c % 2 ? magnitude : -magnitude;
    });
    backend().gelu(z);
    auto expected = [&](int64_t r, int64_t c) {
      const double v = before(r, c), u = std::sqrt(2 / std::acos(-1.0)) * (v + 0.044715 * v * v * v);
      return v / (1 + std::exp(-2 * u));
    };
    // The exponent's rounding is relative to u, which is below 600.
    expect_close(z, expected, [&](int64_t r, int64_t c) {
      const double v = before(r, c);
      return kU * std::abs(expected(r, c)) * (8 + 8 * std::abs(v + 0.044715 * v * v * v)) + 1e-37;
    });
  }
}

TEST_F(BackendTest, GeluOfLargeValuesIsZeroOrTheValue) {
  GuardedMatrix z(1, 4);
  z.fill([](int64_t, int64_t c) {
    const double values[] = {-1e30, -100, 100, 1e30};
    return values[c];
  });
  backend().gelu(z);
  EXPECT_EQ(z(0, 0), 0);
  EXPECT_EQ(z(0, 1), 0);
  EXPECT_EQ(z(0, 2), 100);
  EXPECT_EQ(z(0, 3), 1e30f);
}

TEST_F(BackendTest, SmearMixesWithThePositionBefore) {
  const BatchShape batches[] = {{1, 1, 0}, {1, 6, 0}, {3, 1, 4}, {4, 5, 2}};
  for (const BatchShape& batch : batches) {
    int64_t width = 19;
    GuardedMatrix x(batch.rows(), width), before(batch.sequences, width), out(batch.rows(), width);
    x.fill_random(1);
    before.fill_random(2);
    std::vector<float> gate = random_vector(width, 3, 0, 1);
    backend().smear(x, before, gate, batch, out);
    auto previous = [&](int64_t r, int64_t c) {
      return r % batch.positions == 0 ? before(r / batch.positions, c) : x(r - 1, c);
    };
    expect_close(
        out,
        [&](int64_t r, int64_t c) {
          double g = gate[static_cast<size_t>(c)];
          return (1 - g) * x(r, c) + g * previous(r, c);
        },
        [](int64_t, int64_t) { return 6 * kU; });
  }
}

TEST_F(BackendTest, AddSkipWithAndWithoutAGate) {
  for (bool gated : {false, true}) {
    GuardedMatrix skip(4, 35), x(4, 35);
    skip.fill_random(1);
    GuardedMatrix before = x.fill_random(2);
    std::vector<float> weight = random_vector(35, 3), gate = gated ? random_vector(35, 4, 0, 1) : std::vector<float>();
    backend().add_skip(skip, weight, gate, x);
    expect_close(
        x,
        [&](int64_t r, int64_t c) {
          auto i = static_cast<size_t>(c);
          double weighted = double{weight[i]} * skip(r, c);
          return gated ? (1 - double{gate[i]}) * weighted + double{gate[i]} * before(r, c) : before(r, c) + weighted;
        },
        [](int64_t, int64_t) { return 8 * kU; });
  }
}

TEST_F(BackendTest, MixAndNorm) {
  for (const Extent& e : kExtents) {
    GuardedMatrix x(e.rows, e.cols), x0(e.rows, e.cols), u(e.rows, e.cols), normed(e.rows, e.cols);
    x.fill_random(1);
    x0.fill_random(2);
    std::vector<float> mix_x = random_vector(e.cols, 3), mix_x0 = random_vector(e.cols, 4);
    backend().mix_and_norm(x, x0, mix_x, mix_x0, 0.5f, u, normed);
    auto term = [&](int64_t r, int64_t c) { return double{mix_x[static_cast<size_t>(c)]} * x(r, c); };
    auto term0 = [&](int64_t r, int64_t c) { return double{mix_x0[static_cast<size_t>(c)]} * x0(r, c); };
    expect_close(
        u, [&](int64_t r, int64_t c) { return term(r, c) + term0(r, c); },
        [&](int64_t r, int64_t c) { return 3 * kU * (std::abs(term(r, c)) + std::abs(term0(r, c))); });
    expect_normed(normed, u, 0.5f);
  }
}

TEST_F(BackendTest, AddAndNorm) {
  for (const Extent& e : kExtents) {
    GuardedMatrix a(e.rows, e.cols), x(e.rows, e.cols), normed(e.rows, e.cols);
    a.fill_random(1);
    GuardedMatrix before = x.fill_random(2);
    std::vector<float> scale = random_vector(e.cols, 3);
    auto scaled = [&](int64_t r, int64_t c) { return double{scale[static_cast<size_t>(c)]} * a(r, c); };
    backend().add_and_norm(a, scale, 0.25f, x, normed);
    expect_close(
        x, [&](int64_t r, int64_t c) { return before(r, c) + scaled(r, c); },
        [&](int64_t r, int64_t c) { return 2 * kU * (std::abs(before(r, c)) + std::abs(scaled(r, c))); });
    expect_normed(normed, x, 0.25f);
  }
}

// Two halves of the first 2 * half dimensions turn; the rest is only normed.
TEST_F(BackendTest, NormAndRotate) {
  struct Case {
    int64_t heads, head_dim, half;
    BatchShape batch;
    bool gains;
  };
  const Case cases[] = {{1, 4, 2, {1, 1, 0}, true},
                        {3, 7, 2, {2, 5, 3}, true},
                        {2, 64, 8, {1, 9, 100}, false},
                        {4, 10, 5, {3, 1, 17}, true}};
  for (const Case& t : cases) {
    int64_t positions = t.batch.first_position + t.batch.positions, width = t.heads * t.head_dim;
    GuardedMatrix x(t.batch.rows(), width);
    GuardedMatrix before = x.fill_random(1, 3);
    RotaryTable rotary{Matrix(positions, t.half), Matrix(positions, t.half)};
    for (int64_t p = 0; p < positions; ++p)
      for (int64_t k = 0; k < t.half; ++k) {
        double angle = 0.37 * static_cast<double>(p) / static_cast<double>(k + 1);
        rotary.cosine(p, k) = static_cast<float>(std::cos(angle));
        rotary.sine(p, k) = static_cast<float>(std::sin(angle));
      }
    std::vector<float> gain = t.gains ? random_vector(t.heads, 2, 0.5, 2) : std::vector<float>();
    backend().norm_and_rotate(x, t.head_dim, rotary, gain, t.batch);
    auto normed = [&](int64_t r, int64_t head, int64_t k) {
      double scale = gain.empty() ? 1.0 : gain[static_cast<size_t>(head)];
      return before(r, head * t.head_dim + k) * inverse_rms(before, r, head * t.head_dim, t.head_dim) * scale;
    };
    auto expected = [&](int64_t r, int64_t c) {
      int64_t head = c / t.head_dim, k = c % t.head_dim, p = t.batch.first_position + r % t.batch.positions;
      if (k >= 2 * t.half) return normed(r, head, k);
      bool first = k < t.half;
      int64_t pair = first ? k : k - t.half;
      double x1 = normed(r, head, pair), x2 = normed(r, head, pair + t.half);
      double cosine = rotary.cosine(p, pair), sine = rotary.sine(p, pair);
      return first ? x1 * cosine + x2 * sine : -x1 * sine + x2 * cosine;
    };
    // A head's normed elements are at most sqrt(d) * gain.
    double largest = 2 * std::sqrt(static_cast<double>(t.head_dim));
    expect_close(x, expected, [&](int64_t, int64_t) { return 2 * largest * (rms_relative(t.head_dim) + 2 * kU); });
  }
}

TEST_F(BackendTest, StoreRowsFillsTheirSlotsOnly) {
  BatchShape batch{3, 2, 4};
  int64_t capacity = 7;
  GuardedMatrix rows(batch.rows(), 9), cache(batch.sequences * capacity, 9);
  backend().store_rows(rows.fill_random(1), batch, capacity, cache);
  EXPECT_TRUE(cache.guards_intact());
  for (int64_t slot = 0; slot < cache.rows(); ++slot) {
    int64_t position = slot % capacity - batch.first_position;
    bool stored = position >= 0 && position < batch.positions;
    for (int64_t c = 0; c < 9; ++c) {
      if (stored) {
        EXPECT_EQ(cache(slot, c), rows(slot / capacity * batch.positions + position, c));
      } else {
        EXPECT_TRUE(std::isnan(cache(slot, c)));
      }
    }
  }
}

TEST_F(BackendTest, LeakyReluSquared) {
  for (const Extent& e : kExtents) {
    GuardedMatrix z(e.rows, e.cols);
    GuardedMatrix before = z.fill_random(1, 3);
    backend().leaky_relu_squared(z);
    auto expected = [&](int64_t r, int64_t c) {
      double value = before(r, c) > 0 ? before(r, c) : 0.5 * before(r, c);
      return value * value;
    };
    expect_close(z, expected, [&](int64_t r, int64_t c) { return 2 * kU * expected(r, c); });
  }
}

// tanh is a rational approximation, good to a few units in the last place.
TEST_F(BackendTest, Softcap) {
  for (const Extent& e : kExtents) {
    GuardedMatrix x(e.rows, e.cols);
    GuardedMatrix before = x.fill([&](int64_t r, int64_t c) {
      return 300 * std::pow(2 * uniform_at(1, static_cast<uint64_t>(r), static_cast<uint64_t>(c)) - 1, 5);
    });
    backend().softcap(30.0f, x);
    auto expected = [&](int64_t r, int64_t c) { return 30 * std::tanh(before(r, c) / 30.0); };
    expect_close(x, expected, [&](int64_t r, int64_t c) { return 16 * kU * std::abs(expected(r, c)); });
  }
}

TEST_F(BackendTest, SoftcapOfExtremeValues) {
  const float values[] = {0.0f, -0.0f, 1e-30f, 1e30f, -1e30f, kInfinity, -kInfinity, 29.0f, 1000.0f};
  const double expected[] = {0, 0, 1e-30, 30, -30, 30, -30, 30 * std::tanh(29.0 / 30), 30};
  GuardedMatrix x(1, 9);
  x.fill([&](int64_t, int64_t c) { return values[c]; });
  backend().softcap(30.0f, x);
  expect_close(
      x, [&](int64_t, int64_t c) { return expected[c]; },
      [&](int64_t, int64_t c) { return 16 * kU * std::abs(expected[c]); });
}

TEST_F(BackendTest, LogSoftmax) {
  for (double scale : {1.0, 30.0, 1e4}) {
    for (const Extent& e : kExtents) {
      GuardedMatrix x(e.rows, e.cols);
      GuardedMatrix before = x.fill_random(1, scale);
      backend().log_softmax(x);
      std::vector<double> log_sum;
      for (int64_t r = 0; r < e.rows; ++r) {
        double peak = *std::max_element(before.view().row(r), before.view().row(r) + e.cols), sum = 0;
        for (int64_t c = 0; c < e.cols; ++c) sum += std::exp(before(r, c) - peak);
        log_sum.push_back(peak + std::log(sum));
      }
      // Relative error of a sum of n exponentials, and the roundings of peak + log sum and of the difference.
      double sum_error = (static_cast<double>(e.cols) + 8) * kU;
      expect_close(
          x, [&](int64_t r, int64_t c) { return before(r, c) - log_sum[static_cast<size_t>(r)]; },
          [&](int64_t, int64_t) { return sum_error + 6 * kU * scale; });
    }
  }
}

TEST_F(BackendTest, LogSoftmaxOfOneLikelyTokenIsZeroThere) {
  GuardedMatrix x(1, 13);
  x.fill([](int64_t, int64_t c) { return c == 5 ? 1e30 : -1e30; });
  backend().log_softmax(x);
  EXPECT_EQ(x(0, 5), 0);
  EXPECT_EQ(x(0, 0), -2e30f);
}

// A damaged weight must show in the loss, not vanish in a maximum or a clamp.
TEST_F(BackendTest, NanIsNeverSwallowed) {
  for (int64_t width : {1, 5, 8, 16, 33}) {
    for (int64_t at = 0; at < width; ++at) {
      SCOPED_TRACE(testing::Message() << "column " << at << " of " << width);
      auto poisoned = [&] {
        return GuardedMatrix(1, width).fill([&](int64_t, int64_t c) { return c == at ? double{kNaN} : 0.5; });
      };
      GuardedMatrix capped = poisoned(), squared = poisoned(), scores = poisoned(), normed = poisoned();
      backend().softcap(30.0f, capped);
      backend().leaky_relu_squared(squared);
      backend().log_softmax(scores);
      backend().rms_norm(normed, 1.0f, normed);
      EXPECT_TRUE(std::isnan(capped(0, at)));
      EXPECT_TRUE(std::isnan(squared(0, at)));
      for (int64_t c = 0; c < width; ++c) {
        EXPECT_TRUE(std::isnan(scores(0, c)));
        EXPECT_TRUE(std::isnan(normed(0, c)));
      }
    }
  }
}

TEST_F(BackendTest, ThreadsDoNotChangeBits) {
  std::vector<GuardedMatrix> results;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    GuardedMatrix x(300, 129), w(70, 129), y(300, 70);
    x.fill_random(1);
    backend().rms_norm(x, 1.0f, x);
    backend().leaky_relu_squared(x);
    backend().linear(x, w.fill_random(2), y);
    backend().softcap(5.0f, y);
    backend().log_softmax(y);
    results.push_back(y);
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

}  // namespace
}  // namespace thimble
