// attention_test.cpp: cached causal attention of the CPU backend against loops in float64: grouped heads, several
// sequences, tiles, single queries, exclusive self-attention. Everything that may not be read is NaN.
// Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/backend.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble {
namespace {

constexpr double kU = kFloatRounding;

struct Case {
  AttentionShape shape;
  BatchShape batch;
  int64_t capacity;
};

// Queries, keys, values and outputs of one call. Cache slots that hold no position yet stay NaN.
struct Call {
  explicit Call(const Case& t)
      : shape(t.shape),
        batch(t.batch),
        capacity(t.capacity),
        q(t.batch.rows(), t.shape.heads * t.shape.head_dim),
        k(t.batch.sequences * t.capacity, t.shape.kv_heads * t.shape.head_dim),
        v(t.batch.sequences * t.capacity, t.shape.kv_heads * t.shape.head_dim),
        y(t.batch.rows(), t.shape.heads * t.shape.head_dim) {}

  Call& fill_random(double query_scale) {
    q.fill_random(1, query_scale);
    for (auto [matrix, seed] : {std::pair{&k, 2}, {&v, 3}}) {
      matrix->fill([&, seed = static_cast<uint64_t>(seed)](int64_t slot, int64_t c) {
        if (slot % capacity >= batch.first_position + batch.positions) return std::nan("");
        return 2 * uniform_at(seed, static_cast<uint64_t>(slot), static_cast<uint64_t>(c)) - 1;
      });
    }
    return *this;
  }

  void run(Backend& backend) { backend.attention(q, {k.view(), v.view(), capacity}, shape, batch, y); }

  AttentionShape shape;
  BatchShape batch;
  int64_t capacity;
  GuardedMatrix q, k, v, y;
};

struct Reference {
  std::vector<double> y;  // (d)
  double tolerance = 0;
};

// One query of one head. The tolerance follows the roundings: scores (d terms), exponentials, sums over the keys, and
// for exclusive attention one more projection (d terms).
Reference attend(const Call& call, int64_t row, int64_t head) {
  int64_t d = call.shape.head_dim, sequence = row / call.batch.positions;
  int64_t keys = call.batch.first_position + row % call.batch.positions + 1;
  int64_t kv_col = head / (call.shape.heads / call.shape.kv_heads) * d;
  double inverse_sqrt_d = 1 / std::sqrt(static_cast<double>(d));
  std::vector<double> weight;
  double largest_error = 0, peak = -1e300, lowest = 1e300, sum = 0, largest_value = 0;
  for (int64_t j = 0; j < keys; ++j) {
    double score = 0, magnitude = 0;
    for (int64_t c = 0; c < d; ++c) {
      double term = double{call.q(row, head * d + c)} * call.k(sequence * call.capacity + j, kv_col + c);
      score += term * inverse_sqrt_d;
      magnitude += std::abs(term) * inverse_sqrt_d;
      largest_value = std::max(largest_value, std::abs(double{call.v(sequence * call.capacity + j, kv_col + c)}));
    }
    weight.push_back(score);
    peak = std::max(peak, score);
    lowest = std::min(lowest, score);
    largest_error = std::max(largest_error, static_cast<double>(d + 2) * kU * magnitude);
  }
  for (double& w : weight) sum += w = std::exp(w - peak);
  Reference reference{std::vector<double>(static_cast<size_t>(d)), 0};
  for (int64_t j = 0; j < keys; ++j)
    for (int64_t c = 0; c < d; ++c)
      reference.y[static_cast<size_t>(c)] +=
          weight[static_cast<size_t>(j)] / sum * call.v(sequence * call.capacity + j, kv_col + c);
  double relative = 4 * largest_error + (2 * static_cast<double>(keys) + 16) * kU;
  reference.tolerance = relative * largest_value;
  if (!call.shape.exclusive) return reference;
  const float* own = call.v.view().row(sequence * call.capacity + keys - 1) + kv_col;
  double norm = 0, along = 0;
  for (int64_t c = 0; c < d; ++c) norm += double{own[c]} * own[c];
  norm = std::max(std::sqrt(norm), 1e-12);
  for (int64_t c = 0; c < d; ++c) along += reference.y[static_cast<size_t>(c)] * own[c] / norm;
  for (int64_t c = 0; c < d; ++c) reference.y[static_cast<size_t>(c)] -= along * own[c] / norm;
  double dims = static_cast<double>(d);
  reference.tolerance =
      (1 + std::sqrt(dims)) * reference.tolerance + 2 * (dims + 8) * kU * std::sqrt(dims) * largest_value;
  return reference;
}

void expect_attention(Call& call, Backend& backend) {
  call.run(backend);
  EXPECT_TRUE(call.y.guards_intact());
  int64_t d = call.shape.head_dim;
  for (int64_t row = 0; row < call.batch.rows(); ++row) {
    for (int64_t head = 0; head < call.shape.heads; ++head) {
      Reference reference = attend(call, row, head);
      for (int64_t c = 0; c < d; ++c)
        ASSERT_NEAR(call.y(row, head * d + c), reference.y[static_cast<size_t>(c)], reference.tolerance)
            << "row " << row << " head " << head << " dimension " << c;
    }
  }
}

class Attention : public testing::Test {
 protected:
  std::unique_ptr<Backend> backend_ = make_cpu_backend();
};

// Heads and groups; one query, few, more than four, more than a tile of 128; from position 0 or later; spare capacity.
const AttentionShape kShapes[] = {
    {1, 1, 1, false}, {2, 1, 5, true}, {4, 2, 8, false}, {3, 3, 17, true}, {6, 2, 64, true}};
struct Span {
  BatchShape batch;
  int64_t capacity;
};
const Span kSpans[] = {{{1, 1, 0}, 1}, {{1, 1, 9}, 12}, {{3, 1, 5}, 8},     {{2, 4, 3}, 9},
                       {{1, 5, 0}, 5}, {{2, 7, 2}, 11}, {{1, 130, 0}, 130}, {{1, 129, 6}, 140}};

TEST_F(Attention, MatchesLoops) {
  for (const AttentionShape& shape : kShapes) {
    for (const Span& span : kSpans) {
      SCOPED_TRACE(testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of " << shape.head_dim << ", "
                                      << span.batch.sequences << " x " << span.batch.positions << " from "
                                      << span.batch.first_position);
      for (double query_scale : {1.0, 20.0})
        expect_attention(Call({shape, span.batch, span.capacity}).fill_random(query_scale), *backend_);
    }
  }
}

TEST_F(Attention, ZeroQueriesAverageTheValues) {
  for (bool exclusive : {false, true}) {
    Call call({{2, 1, 6, exclusive}, {1, 9, 0}, 9});
    call.fill_random(0);
    expect_attention(call, *backend_);
  }
}

// Exponentials neither overflow nor leave a sum of zero: all the weight lies on the best key.
TEST_F(Attention, HugeScoresPickOneKey) {
  for (int64_t positions : {3, 9}) {
    Call call({{1, 1, 4, false}, {1, positions, 0}, positions});
    call.fill_random(1);
    call.q.fill([](int64_t, int64_t) { return 1e15; });
    call.k.fill([](int64_t slot, int64_t) { return slot == 1 ? 1e15 : -1e15; });
    call.run(*backend_);
    for (int64_t row = 1; row < positions; ++row)
      for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(call.y(row, c), call.v(1, c));
  }
}

TEST_F(Attention, ExclusiveWithAZeroValueRemovesNothing) {
  for (int64_t positions : {2, 9}) {
    Call call({{2, 1, 5, true}, {1, positions, 0}, positions});
    call.fill_random(1);
    for (int64_t c = 0; c < 5; ++c) call.v(positions - 1, c) = 0;
    expect_attention(call, *backend_);
  }
}

// The first position sees itself alone: its output is its own value, of which exclusive attention leaves nothing.
TEST_F(Attention, TheFirstPositionSeesItself) {
  for (int64_t positions : {1, 9}) {
    Call plain({{1, 1, 8, false}, {1, positions, 0}, positions}),
        exclusive({{1, 1, 8, true}, {1, positions, 0}, positions});
    plain.fill_random(1).run(*backend_);
    exclusive.fill_random(1).run(*backend_);
    for (int64_t c = 0; c < 8; ++c) {
      EXPECT_NEAR(plain.y(0, c), plain.v(0, c), 2 * kU);
      EXPECT_NEAR(exclusive.y(0, c), 0, 16 * kU);
    }
  }
}

TEST_F(Attention, LaterPositionsDoNotInfluenceEarlierOnes) {
  Call first({{2, 1, 8, true}, {1, 140, 0}, 140});
  first.fill_random(1);
  Call second = first;
  for (int64_t slot = 50; slot < 140; ++slot)
    for (int64_t c = 0; c < 8; ++c) second.k(slot, c) = second.v(slot, c) = 7;
  first.run(*backend_);
  second.run(*backend_);
  for (int64_t row = 0; row < 50; ++row)
    for (int64_t c = 0; c < 16; ++c) ASSERT_EQ(first.y(row, c), second.y(row, c)) << row;
  EXPECT_NE(first.y(60, 0), second.y(60, 0));
}

TEST_F(Attention, NanScoresShow) {
  for (int64_t positions : {1, 9}) {
    Call call({{1, 1, 8, false}, {1, positions, 0}, positions});
    call.fill_random(1);
    call.q(positions - 1, 3) = std::numeric_limits<float>::quiet_NaN();
    call.run(*backend_);
    for (int64_t c = 0; c < 8; ++c) EXPECT_TRUE(std::isnan(call.y(positions - 1, c)));
  }
}

TEST_F(Attention, ThreadsDoNotChangeBits) {
  std::vector<Call> calls;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    calls.emplace_back(Case{{4, 2, 16, true}, {2, 150, 3}, 160}).fill_random(1).run(*backend_);
  }
  EXPECT_EQ(calls[1].y, calls[0].y);
  EXPECT_EQ(calls[2].y, calls[0].y);
}

}  // namespace
}  // namespace thimble
