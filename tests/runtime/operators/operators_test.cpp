// operators_test.cpp: the operators on the host: values that are known, rows that are masked or not finite, both ways
// to go over a row, and the order of sums.
#include "runtime/operators/operators.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/base/random.h"
#include "runtime/operators/element_operators.h"
#include "runtime/operators/row_operators.h"

namespace thimble::operators_test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
using Floats = std::vector<float>;

Floats random_row(int64_t cols, uint64_t seed) {
  Floats values;
  for (int64_t c = 0; c < cols; ++c)
    values.push_back(static_cast<float>(20 * uniform_at(seed, 5, static_cast<uint64_t>(c)) - 10));
  return values;
}

// The call's result as float32, for x stored as `call.in`.
Floats run(OperatorCall call, const Floats& x) {
  ByteVector stored = from_float32(call.in, x);
  call.cols = call.cols ? call.cols : static_cast<int64_t>(x.size());
  call.rows = static_cast<int64_t>(x.size()) / call.cols;
  size_t count = call.op == Operator::kCrossEntropy ? static_cast<size_t>(call.rows) : x.size();
  ByteVector y(count * dtype_bytes(call.out), std::byte{0xff});
  call.x = stored.data();
  call.y = y.data();
  run_operator(call);
  return to_float32(call.out, y);
}

OperatorCall call_of(Operator op, DType in = DType::kF16, DType out = DType::kF32) {
  OperatorCall call;
  call.op = op;
  call.in = in;
  call.out = out;
  return call;
}

TEST(Operators, SoftmaxOfKnownRows) {
  EXPECT_EQ(run(call_of(Operator::kSoftmax), {5, 5, 5, 5}), (Floats{0.25f, 0.25f, 0.25f, 0.25f}));
  EXPECT_EQ(run(call_of(Operator::kSoftmax), {3}), (Floats{1}));
  Floats two = run(call_of(Operator::kSoftmax), {0, 1});
  EXPECT_NEAR(two[1], 1 / (1 + std::exp(-1.0)), 1e-7);
  // The largest differences of fp16 lie far beyond what exp() without the peak could take.
  EXPECT_EQ(run(call_of(Operator::kSoftmax), {65504, -65504}), (Floats{1, 0}));
}

TEST(Operators, SoftmaxOfMaskedAndInvalidRows) {
  for (int64_t cols : {3, 700, 9000}) {  // warp, block, streamed
    SCOPED_TRACE(cols);
    Floats x(static_cast<size_t>(cols), -kInfinity);
    for (float y : run(call_of(Operator::kSoftmax), x)) ASSERT_TRUE(std::isnan(y));
    x.back() = 2;
    Floats y = run(call_of(Operator::kSoftmax), x);
    EXPECT_EQ(y.back(), 1);
    EXPECT_EQ(y.front(), 0);
    for (float bad : {kNaN, kInfinity}) {
      x.front() = bad;
      for (float value : run(call_of(Operator::kSoftmax), x)) ASSERT_TRUE(std::isnan(value)) << bad;
    }
  }
}

TEST(Operators, CodesAreDequantizedOnTheWay) {
  Floats scale = {0.5f, 0.0f};
  OperatorCall call = call_of(Operator::kDequantizeSoftmax, DType::kI8);
  call.scale = scale.data();
  call.cols = 2;
  std::vector<int8_t> codes = {127, 125, -128, 127};
  Floats y(4);
  call.rows = 2;
  call.x = codes.data();
  call.y = y.data();
  run_operator(call);
  EXPECT_NEAR(y[0], 1 / (1 + std::exp(-1.0)), 1e-7);
  EXPECT_EQ(y[2], 0.5f);
  EXPECT_EQ(y[3], 0.5f);
}

TEST(Operators, NormsOfKnownRows) {
  Floats weight = {1, 2}, bias = {0, 10};
  OperatorCall call = call_of(Operator::kLayerNorm);
  call.weight = weight.data();
  call.bias = bias.data();
  EXPECT_EQ(run(call, {-3, 3}), (Floats{-1, 12}));
}

TEST(Operators, EpsilonKeepsNormsOfZerosFinite) {
  for (Operator op : {Operator::kRmsNorm, Operator::kLayerNorm}) {
    OperatorCall call = call_of(op);
    call.epsilon = 1e-5f;
    EXPECT_EQ(run(call, {0, 0, 0}), (Floats{0, 0, 0}));
  }
  OperatorCall call = call_of(Operator::kRmsNorm);
  EXPECT_EQ(run(call, {4, -4}), (Floats{1, -1}));
}

// One float has too few digits for the mean of a row that lies far from 0.
TEST(Operators, LayerNormOfARowFarFromZero) {
  for (int64_t cols : {33, 4097, 9001}) {
    Floats x;
    for (int64_t c = 0; c < cols; ++c) x.push_back(c % 2 == 0 ? 1024.0f : 1025.0f);
    Floats y = run(call_of(Operator::kLayerNorm), x);
    double ones = static_cast<double>(cols / 2), mean = ones / static_cast<double>(cols);
    double deviation = std::sqrt(mean * (1 - mean));
    EXPECT_NEAR(y[0], -mean / deviation, 1e-6) << cols;
    EXPECT_NEAR(y[1], (1 - mean) / deviation, 1e-6) << cols;
  }
}

TEST(Operators, ElementsOfKnownValues) {
  Floats y = run(call_of(Operator::kGelu), {0, 1, -1, 60, -60, 0x1p-24f});
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1], 0.841192, 1e-6);  // of PyTorch's gelu(approximate="tanh")
  EXPECT_NEAR(y[2], -0.158808, 1e-6);
  EXPECT_EQ(y[3], 60);
  EXPECT_EQ(y[4], 0);
  EXPECT_FLOAT_EQ(y[5], 0x1p-25f);
  OperatorCall call = call_of(Operator::kSoftcap, DType::kBF16);
  call.cap = 30;
  y = run(call, {0, 30, -1000, 0x1p-130f, kNaN});
  EXPECT_EQ(y[0], 0);
  EXPECT_NEAR(y[1], 30 * std::tanh(1.0), 1e-5);
  EXPECT_EQ(y[2], -30);
  EXPECT_EQ(y[3], 0x1p-130f);
  EXPECT_TRUE(std::isnan(y[4]));
}

TEST(Operators, CrossEntropyOfKnownRows) {
  std::vector<int32_t> targets = {1, 0};
  OperatorCall call = call_of(Operator::kCrossEntropy);
  call.targets = targets.data();
  call.cols = 2;
  Floats nll = run(call, {0, 0, 80, -80});
  EXPECT_NEAR(nll[0], std::log(2.0), 1e-7);
  EXPECT_EQ(nll[1], 0);
}

TEST(Operators, TypesThatDoNotExistAreRefused) {
  Floats x(8);
  OperatorCall call = call_of(Operator::kSoftmax, DType::kF16, DType::kBF16);
  call.rows = call.cols = 1;
  call.x = call.y = x.data();
  EXPECT_THROW(run_operator(call), Error);
  call.op = Operator::kDequantizeSoftmax;
  EXPECT_THROW(run_operator(call), Error);
}

TEST(Operators, ResultsDoNotDependOnThreads) {
  Floats x = random_row(40 * 3000, 1);
  for (Operator op : {Operator::kSoftmax, Operator::kLayerNorm, Operator::kGelu}) {
    OperatorCall call = call_of(op);
    call.cols = 3000;
    Floats all = run(call, x);
    ThreadLimit one(1);
    EXPECT_EQ(run(call, x), all) << operator_name(op);
  }
}

// A held and a streamed row, and teams of any size, see the same elements.
template <typename Row, typename Operation>
Floats run_row(Row row, Operation operation, int lanes, int64_t cols) {
  Floats y(static_cast<size_t>(cols), kNaN);
  operation.y = y.data();
  operation(HostTeam(lanes), row, 0);
  return y;
}

TEST(Operators, HeldAndStreamedRowsAgree) {
  constexpr int kPack = kPackOf<Fp16, float>;
  for (int64_t cols : {1, 3, 4, 5, 127, 128, 1021, 5000}) {
    std::vector<Fp16> x;
    for (float value : random_row(cols, 2)) x.push_back(StorageTraits<Fp16>::store(value));
    RowInMemory<Fp16, kPack> memory{x.data(), cols, false};
    SoftmaxRow<Fp16, float> softmax{x.data(), nullptr, cols, nullptr};
    LayerNormRow<Fp16, float> norm{x.data(), nullptr, cols, {}, 1e-5f};
    Floats expected_softmax = run_row(HostHeldRow(memory), softmax, 32, cols);
    Floats expected_norm = run_row(HostHeldRow(memory), norm, 32, cols);
    for (int lanes : {32, 256, 1024}) {
      Floats held = run_row(HostHeldRow(memory), softmax, lanes, cols);
      Floats streamed = run_row(StreamedRow<Fp16, kPack>{memory}, softmax, lanes, cols);
      Floats normed = run_row(StreamedRow<Fp16, kPack>{memory}, norm, lanes, cols);
      for (size_t i = 0; i < held.size(); ++i) {
        ASSERT_NEAR(held[i], expected_softmax[i], 2e-6 * expected_softmax[i]) << cols << " of " << lanes;
        ASSERT_NEAR(streamed[i], expected_softmax[i], 2e-6 * expected_softmax[i]) << cols << " of " << lanes;
        ASSERT_NEAR(normed[i], expected_norm[i], 2e-6) << cols << " of " << lanes;
      }
    }
  }
}

// Lane l of 32 joins with l + 16, then with l + 8, and so on; then the 32s in ascending order.
TEST(HostTeam, JoinsInTheDocumentedOrder) {
  auto name = [](int lane) { return std::vector<int>{lane}; };
  auto append = [](std::vector<int> a, const std::vector<int>& b) {
    a.insert(a.end(), b.begin(), b.end());
    return a;
  };
  std::vector<int> order = HostTeam(64).join<std::vector<int>>(name, append);
  ASSERT_EQ(order.size(), 64);
  EXPECT_EQ((std::vector<int>(order.begin(), order.begin() + 8)), (std::vector<int>{0, 16, 8, 24, 4, 20, 12, 28}));
  EXPECT_EQ(order[32], 32);
  EXPECT_EQ(order[33], 48);
}

TEST(RowShape, HoldsRowsOfSomeThousands) {
  for (int pack : {4, 8}) {
    for (int64_t cols : {1, 512, 513, 2048, 4096, 8192, 8193, 131072}) {
      RowShape shape = row_shape(cols, pack);
      EXPECT_EQ(shape.held_values > 0, cols <= 8192) << cols;
      if (shape.held_values > 0) {
        EXPECT_GE(int64_t{shape.lanes} * shape.held_values, cols);
        EXPECT_EQ(shape.held_values % pack, 0);
      }
    }
  }
}

}  // namespace
}  // namespace thimble::operators_test
