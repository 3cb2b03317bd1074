// product_operations_test.cpp: lookups, products and sums of CpuPass against plain loops in float64, on awkward widths.
// Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::product_operations_test {
namespace {

constexpr double kU = kFloatRounding;

TEST(CpuOperations, LookupsAreExact) {
  for (const Extent& e : kExtents) {
    const SmallNetwork small{
        {random_matrix(e.rows, e.cols, 1)}, e.cols, {}, [](Ops&, const auto& in) { return in[0]; }};
    for (Inputs how : kAllInputs) EXPECT_TRUE(same_bits(run_small(small, how), small.inputs[0]));
  }
}

TEST(CpuOperations, LookupsTakeRowsInAnyOrder) {
  Weights weights =
      weights_of({{random_matrix(7, 33, 1)}, 33, {}, [](Ops&, const auto& in) { return in[0]; }}, Inputs::kOwn);
  const Matrix table = weights.matrix(weights.network->id_of("input0")).widened();
  TokenBatch batch = row_batch({1, 9, 0});
  batch.tokens = {6, 0, 0, 3, 6, 1, 2, 5, 4};
  CpuPass pass(weights, 9);
  for (int64_t first : {0, 4, 8}) {  // also of the last rows alone
    const ConstMatrixView found = pass.run(batch, nullptr, first);
    ASSERT_EQ(found.rows, 9 - first);
    for (int64_t r = 0; r < found.rows; ++r)
      for (int64_t c = 0; c < 33; ++c)
        ASSERT_EQ(found.row(r)[c], table(batch.tokens[static_cast<size_t>(first + r)], c)) << r;
  }
}

TEST(CpuOperations, LookupsByPositionAndByPairsOfTokens) {
  Ops ops({{"places", {9, 5}, Role::kTable}, {"pairs", {4, 5}, Role::kTable}, {"head", {1, 5}, Role::kHead}});
  const Value places = ops.gather("places", {RowIndex::Kind::kPosition});
  const Value pairs = ops.gather("pairs", {RowIndex::Kind::kTokenPair, 4});
  auto network = std::make_shared<const Network>(std::move(ops).head(ops.add(places, pairs, Sum::kMlp), "head"));
  const std::vector<float> zeros(5);
  const Weights weights =
      bind_weights(network, {{"places", random_vector(45, 1)}, {"pairs", random_vector(20, 2)}, {"head", zeros}});
  CpuPass pass(weights, 9);
  CpuCache cache(*network, 2, 9);
  // Two sequences, from position 3.
  const TokenBatch batch{{8, 1, 2, 2}, {TokenBatch::kNoToken, 8, 5, 2}, {2, 2, 3}};
  const ConstMatrixView found = pass.run(batch, &cache);
  const Matrix by_place = weights.matrices[0].widened(), by_pair = weights.matrices[1].widened();
  for (int64_t r = 0; r < 4; ++r) {
    const auto at = static_cast<size_t>(r);
    const int32_t bucket = token_pair_bucket(batch.tokens[at], batch.previous[at], 4);
    for (int64_t c = 0; c < 5; ++c) EXPECT_EQ(found.row(r)[c], by_place(3 + r % 2, c) + by_pair(bucket, c));
  }
}

// A (N, K) matrix.
SmallTensor weight_of(const Matrix& w) {
  return {{w.rows(), w.cols()}, {w.values().begin(), w.values().end()}, Role::kLinear};
}

TEST(CpuOperations, LinearMultipliesByTheTranspose) {
  const Matrix x = random_matrix(5, 37, 1), w = random_matrix(19, 37, 2);
  const SmallNetwork small{
      {x}, 19, {{"w", weight_of(w)}}, [](Ops& ops, const auto& in) { return ops.linear(in[0], "w"); }};
  auto sum = [&](int64_t r, int64_t n, bool magnitude) {
    double total = 0;
    for (int64_t k = 0; k < 37; ++k) {
      double term = double{x(r, k)} * double{w(n, k)};
      total += magnitude ? std::abs(term) : term;
    }
    return total;
  };
  for (Inputs how : kAllInputs)
    expect_close(
        run_small(small, how), [&](int64_t r, int64_t n) { return sum(r, n, false); },
        [&](int64_t r, int64_t n) { return 39 * kU * sum(r, n, true); });
}

// Products with one 1 are exact, so that what is seen is the bias.
TEST(CpuOperations, ABiasIsForEveryRow) {
  for (const Extent& e : kExtents) {
    const Matrix w = random_matrix(e.cols, e.rows, 2);
    const std::vector<float> bias = random_vector(e.cols, 3);
    const SmallNetwork small{{filled(e.rows, e.rows, [](int64_t r, int64_t c) { return r == c ? 1 : 0; })},
                             e.cols,
                             {{"w", weight_of(w)}, {"b", {{e.cols}, bias}}},
                             [](Ops& ops, const auto& in) { return ops.linear(in[0], "w", ops.vector("b")); }};
    for (Inputs how : kAllInputs)
      expect_close(
          run_small(small, how),
          [&](int64_t r, int64_t c) { return double{w(c, r)} + double{bias[static_cast<size_t>(c)]}; },
          [](int64_t, int64_t) { return 2 * kU; });
  }
}

// y = x + scale * a with a scale of each column, of all, and none.
TEST(CpuOperations, AddScales) {
  for (const Extent& e : kExtents) {
    const Matrix x = random_matrix(e.rows, e.cols, 2), a = random_matrix(e.rows, e.cols, 1);
    for (const std::vector<float>& scale : {random_vector(e.cols, 3), {-1.7f}, {}}) {
      SmallNetwork small{{x, a}, e.cols, {}, [&](Ops& ops, const auto& in) {
                           return ops.add(in[0], in[1], Sum::kMlp, scale.empty() ? Vector{} : ops.vector("scale"));
                         }};
      if (!scale.empty()) small.tensors["scale"] = {{static_cast<int64_t>(scale.size())}, scale};
      auto scaled = [&](int64_t r, int64_t c) {
        const double factor = scale.empty() ? 1 : double{scale[scale.size() == 1 ? 0 : static_cast<size_t>(c)]};
        return factor * double{a(r, c)};
      };
      for (Inputs how : kAllInputs)
        expect_close(
            run_small(small, how), [&](int64_t r, int64_t c) { return double{x(r, c)} + scaled(r, c); },
            [&](int64_t r, int64_t c) { return 2 * kU * (std::abs(double{x(r, c)}) + std::abs(scaled(r, c))); });
    }
  }
}

// Views of views, as inputs of operations.
TEST(CpuOperations, ColumnsAreViews) {
  const Matrix x = random_matrix(5, 11, 1);
  const SmallNetwork small{{x}, 4, {}, [](Ops& ops, const auto& in) {
                             const Value middle = ops.columns(in[0], 2, 7);
                             return ops.add(ops.columns(middle, 0, 4), ops.columns(middle, 3, 4), Sum::kMlp);
                           }};
  for (Inputs how : kAllInputs)
    expect_close(
        run_small(small, how), [&](int64_t r, int64_t c) { return double{x(r, 2 + c)} + double{x(r, 5 + c)}; },
        [](int64_t, int64_t) { return 2 * kU; });
}

}  // namespace
}  // namespace thimble::product_operations_test
