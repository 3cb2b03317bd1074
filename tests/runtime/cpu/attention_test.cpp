// attention_test.cpp: causal attention of CpuPass against loops in float64: grouped heads, several sequences, tiles,
// single queries, exclusive self-attention, scales, with a cache and without. Everything that may not be read is NaN.
// Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/base/random.h"
#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::attention_test {
namespace {

constexpr double kU = kFloatRounding;

struct Case {
  op::Attention shape;
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
        v(t.batch.sequences * t.capacity, t.shape.kv_heads * t.shape.head_dim) {}

  Call& fill_random(double query_scale) {
    q = random_matrix(q.rows(), q.cols(), 1, query_scale);
    for (auto [matrix, seed] : {std::pair{&k, 2}, {&v, 3}}) {
      *matrix = filled(k.rows(), k.cols(), [&, seed = static_cast<uint64_t>(seed)](int64_t slot, int64_t c) {
        if (slot % capacity >= batch.first_position + batch.positions) return std::nan("");
        return 2 * uniform_at(seed, static_cast<uint64_t>(slot), static_cast<uint64_t>(c)) - 1;
      });
    }
    return *this;
  }

  // Slots of the batch's own positions.
  bool is_new(int64_t slot) const {
    const int64_t position = slot % capacity - batch.first_position;
    return position >= 0 && position < batch.positions;
  }

  SmallNetwork network() const {
    auto own_rows = [&](const Matrix& all) {
      return filled(batch.rows(), all.cols(), [&](int64_t r, int64_t c) {
        return double{all(r / batch.positions * capacity + batch.first_position + r % batch.positions, c)};
      });
    };
    return {{q, own_rows(k), own_rows(v)}, q.cols(), {}, [options = shape](Ops& ops, const auto& in) {
              return ops.attention(in[0], in[1], in[2], options);
            }};
  }

  // Keys and values that BF16 holds.
  Call& round_to_bf16() {
    for (Matrix* matrix : {&k, &v})
      for (float& value : matrix->values()) value = float_from_bf16(bf16_from_float(value));
    return *this;
  }

  // Over cached positions before the batch's; those of the batch are stored in their slots, and only there.
  Call& run(Inputs how = Inputs::kViews, DType type = DType::kF32) {
    const Weights weights = weights_of(network(), how);
    CpuCache cache(*weights.network, batch.sequences, capacity, type);
    const std::vector<float> none(static_cast<size_t>(k.cols()), std::nanf(""));
    for (int64_t slot = 0; slot < k.rows(); ++slot)
      cache.store(0, slot / capacity, slot % capacity, is_new(slot) ? none.data() : k.row(slot),
                  is_new(slot) ? none.data() : v.row(slot));
    y = run_small(batch, weights, cache);
    EXPECT_TRUE(holds(cache));
    return *this;
  }
  // The batch is all there is.
  Call& run_window(Inputs how) {
    y = run_small(network(), how, batch);
    return *this;
  }

  // All keys and values, each where its sequence, head and position have it.
  bool holds(const CpuCache& cache) const {
    const int64_t d = shape.head_dim;
    std::vector<float> row(static_cast<size_t>(d));
    auto same = [&](const StoredMatrixView& found, const Matrix& all, int64_t slot, int64_t head) {
      found.read_row(slot % capacity, row.data());
      return std::equal(row.begin(), row.end(), all.row(slot) + head * d,
                        [](float one, float other) { return one == other || (std::isnan(one) && std::isnan(other)); });
    };
    for (int64_t slot = 0; slot < k.rows(); ++slot)
      for (int64_t head = 0; head < shape.kv_heads; ++head)
        if (!same(cache.keys(0, slot / capacity, head), k, slot, head) ||
            !same(cache.values(0, slot / capacity, head), v, slot, head))
          return false;
    return true;
  }

  op::Attention shape;
  BatchShape batch;
  int64_t capacity;
  Matrix q, k, v, y;
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
  int64_t first = call.shape.window > 0 ? std::max<int64_t>(0, keys - call.shape.window) : 0;
  int64_t kv_col = head / (call.shape.heads / call.shape.kv_heads) * d;
  const double scale = call.shape.scale > 0 ? double{call.shape.scale} : 1 / std::sqrt(static_cast<double>(d));
  std::vector<double> weight;
  double largest_error = 0, peak = -1e300, lowest = 1e300, sum = 0, largest_value = 0;
  for (int64_t j = first; j < keys; ++j) {
    double score = 0, magnitude = 0;
    for (int64_t c = 0; c < d; ++c) {
      double term = double{call.q(row, head * d + c)} * double{call.k(sequence * call.capacity + j, kv_col + c)};
      score += term * scale;
      magnitude += std::abs(term) * scale;
      largest_value = std::max(largest_value, std::abs(double{call.v(sequence * call.capacity + j, kv_col + c)}));
    }
    weight.push_back(score);
    peak = std::max(peak, score);
    lowest = std::min(lowest, score);
    largest_error = std::max(largest_error, static_cast<double>(d + 2) * kU * magnitude);
  }
  for (double& w : weight) sum += w = std::exp(w - peak);
  Reference reference{std::vector<double>(static_cast<size_t>(d)), 0};
  for (int64_t j = first; j < keys; ++j)
    for (int64_t c = 0; c < d; ++c)
      reference.y[static_cast<size_t>(c)] +=
          weight[static_cast<size_t>(j - first)] / sum * double{call.v(sequence * call.capacity + j, kv_col + c)};
  double relative = 4 * largest_error + (2 * static_cast<double>(keys) + 16) * kU;
  reference.tolerance = relative * largest_value;
  if (!call.shape.exclusive) return reference;
  const float* own = call.v.row(sequence * call.capacity + keys - 1) + kv_col;
  double norm = 0, along = 0;
  for (int64_t c = 0; c < d; ++c) norm += double{own[c]} * double{own[c]};
  norm = std::max(std::sqrt(norm), 1e-12);
  for (int64_t c = 0; c < d; ++c) along += reference.y[static_cast<size_t>(c)] * double{own[c]} / norm;
  for (int64_t c = 0; c < d; ++c) reference.y[static_cast<size_t>(c)] -= along * double{own[c]} / norm;
  double dims = static_cast<double>(d);
  reference.tolerance =
      (1 + std::sqrt(dims)) * reference.tolerance + 2 * (dims + 8) * kU * std::sqrt(dims) * largest_value;
  return reference;
}

void expect_attention(const Call& call) {
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

op::Attention options_of(int64_t heads, int64_t kv_heads, int64_t head_dim, bool exclusive, float scale = 0) {
  return {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .scale = scale, .exclusive = exclusive};
}

// Heads and groups; one query, few, more than four, more than a tile of 128; from position 0 or later; spare capacity.
op::Attention windowed(op::Attention shape, int64_t window) {
  shape.window = window;
  return shape;
}

const op::Attention kShapes[] = {options_of(1, 1, 1, false),
                                 options_of(2, 1, 5, true),
                                 options_of(4, 2, 8, false),
                                 options_of(3, 3, 17, true),
                                 options_of(6, 2, 64, true),
                                 options_of(5, 1, 16, false),
                                 options_of(8, 1, 96, true),
                                 options_of(14, 2, 80, false),
                                 options_of(2, 2, 8, true, 0.1f),
                                 windowed(options_of(4, 2, 8, false), 1),
                                 windowed(options_of(2, 1, 5, true), 4),
                                 windowed(options_of(2, 1, 6, false), 127),
                                 windowed(options_of(1, 1, 8, false), 500)};
struct Span {
  BatchShape batch;
  int64_t capacity;
};
const Span kSpans[] = {{{1, 1, 0}, 1}, {{1, 1, 9}, 12}, {{3, 1, 5}, 8},     {{2, 1, 300}, 301}, {{2, 4, 3}, 9},
                       {{1, 5, 0}, 5}, {{2, 7, 2}, 11}, {{1, 130, 0}, 130}, {{1, 129, 6}, 140}};

TEST(Attention, MatchesLoops) {
  for (const op::Attention& shape : kShapes) {
    for (const Span& span : kSpans) {
      SCOPED_TRACE(::testing::Message() << shape.heads << "/" << shape.kv_heads << " heads of " << shape.head_dim
                                        << ", " << span.batch.sequences << " x " << span.batch.positions << " from "
                                        << span.batch.first_position);
      for (double query_scale : {1.0, 20.0})
        for (Inputs how : kAllInputs)
          expect_attention(Call({shape, span.batch, span.capacity}).fill_random(query_scale).run(how));
    }
  }
}

// Queries of a position or few.
TEST(Attention, OverKeysAndValuesInBf16MatchesLoops) {
  for (const op::Attention& shape : kShapes)
    for (const Span& span : kSpans)
      if (span.batch.positions <= 4)
        expect_attention(
            Call({shape, span.batch, span.capacity}).fill_random(1).round_to_bf16().run(Inputs::kViews, DType::kBF16));
}

TEST(Attention, OfWindowsMatchesLoops) {
  for (const op::Attention& shape : kShapes)
    for (const BatchShape& batch : {BatchShape{1, 1, 0}, {1, 9, 0}, {3, 5, 0}, {2, 130, 0}})
      for (Inputs how : kAllInputs)
        expect_attention(Call({shape, batch, batch.positions}).fill_random(1).run_window(how));
}

// Two heads of 8 columns: outputs of `rows` do not feel keys and values of `slots`, those of row `feels` do.
struct Range {
  int64_t begin, end;
};
void expect_unfelt(const op::Attention& options, int64_t positions, Range slots, Range rows, int64_t feels) {
  Call first({options, {1, positions, 0}, positions});
  first.fill_random(1);
  Call second = first;
  for (int64_t slot = slots.begin; slot < slots.end; ++slot)
    for (int64_t c = 0; c < 8; ++c) second.k(slot, c) = second.v(slot, c) = 7;
  first.run();
  second.run();
  for (int64_t row = rows.begin; row < rows.end; ++row)
    for (int64_t c = 0; c < 16; ++c) ASSERT_EQ(first.y(row, c), second.y(row, c)) << row;
  EXPECT_NE(first.y(feels, 0), second.y(feels, 0));
}

TEST(Attention, PositionsBeforeTheWindowDoNotInfluenceLaterOnes) {
  expect_unfelt(windowed(options_of(2, 1, 8, false), 20), 300, {0, 50}, {69, 300}, 68);
}

TEST(Attention, ZeroQueriesAverageTheValues) {
  for (bool exclusive : {false, true}) {
    expect_attention(Call({options_of(2, 1, 6, exclusive), {1, 9, 0}, 9}).fill_random(0).run());
  }
}

// Exponentials neither overflow nor leave a sum of zero: all the weight lies on the best key.
TEST(Attention, HugeScoresPickOneKey) {
  for (int64_t positions : {3, 9}) {
    Call call({options_of(1, 1, 4, false), {1, positions, 0}, positions});
    call.fill_random(1);
    call.q = filled(positions, 4, [](int64_t, int64_t) { return 1e15; });
    call.k = filled(positions, 4, [](int64_t slot, int64_t) { return slot == 1 ? 1e15 : -1e15; });
    call.run();
    for (int64_t row = 1; row < positions; ++row)
      for (int64_t c = 0; c < 4; ++c) EXPECT_EQ(call.y(row, c), call.v(1, c));
  }
}

TEST(Attention, ExclusiveWithAZeroValueRemovesNothing) {
  for (int64_t positions : {2, 9}) {
    Call call({options_of(2, 1, 5, true), {1, positions, 0}, positions});
    call.fill_random(1);
    for (int64_t c = 0; c < 5; ++c) call.v(positions - 1, c) = 0;
    expect_attention(call.run());
  }
}

// The first position sees itself alone: its output is its own value, of which exclusive attention leaves nothing.
TEST(Attention, TheFirstPositionSeesItself) {
  for (int64_t positions : {1, 9}) {
    Call plain({options_of(1, 1, 8, false), {1, positions, 0}, positions}),
        exclusive({options_of(1, 1, 8, true), {1, positions, 0}, positions});
    plain.fill_random(1).run();
    exclusive.fill_random(1).run();
    for (int64_t c = 0; c < 8; ++c) {
      EXPECT_NEAR(plain.y(0, c), plain.v(0, c), 2 * kU);
      EXPECT_NEAR(exclusive.y(0, c), 0, 16 * kU);
    }
  }
}

TEST(Attention, LaterPositionsDoNotInfluenceEarlierOnes) {
  expect_unfelt(options_of(2, 1, 8, true), 140, {50, 140}, {0, 50}, 60);
}

TEST(Attention, NanScoresShow) {
  for (int64_t positions : {1, 9}) {
    Call call({options_of(1, 1, 8, false), {1, positions, 0}, positions});
    call.fill_random(1);
    call.q(positions - 1, 3) = std::numeric_limits<float>::quiet_NaN();
    call.run();
    for (int64_t c = 0; c < 8; ++c) EXPECT_TRUE(std::isnan(call.y(positions - 1, c)));
  }
}

TEST(Attention, ThreadsDoNotChangeBits) {
  std::vector<Call> calls;
  for (int threads : {1, 2, 5}) {
    ThreadLimit limit(threads);
    calls.emplace_back(Case{options_of(4, 2, 16, true), {2, 150, 3}, 160}).fill_random(1).run();
  }
  EXPECT_TRUE(same_bits(calls[1].y, calls[0].y));
  EXPECT_TRUE(same_bits(calls[2].y, calls[0].y));
}

}  // namespace
}  // namespace thimble::attention_test
