// cuda_attention_test.cu: every attention kernel against plain loops in float64, over windows, continued windows and
// single steps, heads of every width, plain and exclusive, sliding windows, rounded and not.
#include "runtime/cuda/kernels/attention/cuda_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/base/random.h"
#include "runtime/cuda/kernels/cuda_context.cuh"
#include "runtime/cuda/kernels/cuda_sm90.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"

namespace thimble::cuda_attention_test {
namespace {

constexpr AttentionRounding kRounded{{Format::kQ131Q115, Format::kBf16}, {Format::kQ131Q115, Format::kBf16}, 0.9f};
constexpr AttentionRounding kLegacy{{Format::kQ115, Format::kBf16}, {Format::kQ115, Format::kBf16}, 4.0f};
constexpr Rounding kWeights{Format::kQ115, Format::kBf16};

struct Case {
  int head_width, first, positions;
  int sequences = 2, heads = 4, kv_heads = 2;
  bool exclusive = false;
  double spread = 3;  // of scores q.k
  float largest_score = std::numeric_limits<float>::infinity();
  AttentionRounding rounding = {};
  int window = 0;  // positions that a query sees
  int grown = 0;   // keys from here on, if any, are ten times as large

  std::string name() const {
    return "heads " + std::to_string(heads) + '/' + std::to_string(kv_heads) + " of " + std::to_string(head_width) +
           ", positions " + std::to_string(first) + " + " + std::to_string(positions) + (exclusive ? ", XSA" : "") +
           (window > 0 ? ", window " + std::to_string(window) : "") +
           (grown > 0 ? ", keys grown from " + std::to_string(grown) : "") +
           (rounding.exists() ? ", rounded, scale " + std::to_string(rounding.scale) : "") + ", spread " +
           std::to_string(spread);
  }
};

template <typename T>
using Launch = void (*)(const AttentionOperands<T>&, int, cudaStream_t);

template <typename T>
class AttentionCheck {
 public:
  explicit AttentionCheck(const Case& c) : c_(c), capacity_(c.first + c.positions + 5) {
    const int64_t d = c.head_width, rows = int64_t{c.sequences} * c.positions;
    const double root = std::sqrt(static_cast<double>(d));
    fill(query_, rows * c.heads * d, 1, 3 * c.spread / root);
    fill(cache_, c.sequences * capacity_ * 2 * c.kv_heads * d, 2, 1);
    for (int64_t row = 0; row < c.sequences * capacity_; ++row)
      for (int64_t i = 0; i < c.kv_heads * d && c.grown > 0 && row % capacity_ >= c.grown; ++i) {
        T& key = cache_[static_cast<size_t>(row * 2 * c.kv_heads * d + i)];
        key = T(10 * static_cast<float>(key));
      }
    for (T value : query_) query_values_.push_back(static_cast<float>(value));
    for (T value : cache_) cache_values_.push_back(static_cast<float>(value));
  }

  std::vector<T> run(Launch<T> launch) const {
    DeviceArray<T> query{std::span<const T>(query_)}, cache{std::span<const T>(cache_)};
    // In two parts, as graphs move the one and compaction the other.
    const int half = c_.first / 2;
    DeviceArray<int> first{std::span<const int>(&half, 1)};
    launch({query.data(), cache.data(), capacity_, c_.sequences, c_.positions, first.data(), c_.first - half, c_.heads,
            c_.kv_heads, c_.largest_score, c_.exclusive, c_.window, c_.rounding},
           c_.head_width, nullptr);
    check_cuda(cudaDeviceSynchronize());
    std::vector<T> out(query_.size());
    check_cuda(cudaMemcpy(out.data(), query.data(), query.bytes(), cudaMemcpyDeviceToHost));
    return out;
  }

  // The same of each sequence's queries from `first` on.
  AttentionCheck from(int first) const {
    AttentionCheck part = *this;
    part.c_.first += first;
    part.c_.positions -= first;
    part.query_ = part.last_rows(query_);
    part.query_values_ = part.last_rows(query_values_);
    return part;
  }
  // Of rows as another's that has more queries of each sequence: those that this one has too.
  template <typename Value>
  std::vector<Value> last_rows(const std::vector<Value>& rows) const {
    const int64_t width = c_.heads * c_.head_width, all = std::ssize(rows) / c_.sequences / width;
    std::vector<Value> last;
    for (int64_t s = 0; s < c_.sequences; ++s)
      last.insert(last.end(), rows.begin() + ((s + 1) * all - c_.positions) * width,
                  rows.begin() + (s + 1) * all * width);
    return last;
  }

  int64_t rows() const { return int64_t{c_.sequences} * c_.positions * c_.heads; }
  // Rows of heads with a score that exceeds those of the first `keys` by more than `by`.
  int64_t grown_rows(int64_t keys, double by) const {
    int64_t count = 0;
    for (int s = 0; s < c_.sequences; ++s)
      for (int p = 0; p < c_.positions; ++p)
        for (int h = 0; h < c_.heads; ++h) {
          const std::vector<double> all = scores(s, p, h);
          const auto later = all.begin() + std::min<int64_t>(keys, std::ssize(all));
          count += *std::ranges::max_element(all) > *std::max_element(all.begin(), later) + by;
        }
    return count;
  }

  // Each element may be off by `most`, all of them by `mean` on average.
  void expect(Launch<T> launch, const char* kernel, double most, double mean) const {
    const std::vector<T> found = run(launch);
    const int64_t d = c_.head_width;
    double sum = 0, worst = -1;
    int64_t wrong = 0;
    std::string where;
    for (int s = 0; s < c_.sequences; ++s)
      for (int p = 0; p < c_.positions; ++p)
        for (int h = 0; h < c_.heads; ++h) {
          const std::vector<double> y = expected(s, p, h);
          for (int64_t i = 0; i < d; ++i) {
            const double value = static_cast<float>(found[static_cast<size_t>(at(s, p, h) + i)]);
            const double error = std::isfinite(value) ? std::abs(value - y[static_cast<size_t>(i)]) : 1e30;
            sum += error;
            wrong += error > most;
            if (error <= worst) continue;
            worst = error;
            where = "sequence " + std::to_string(s) + " row " + std::to_string(p) + " head " + std::to_string(h) +
                    " column " + std::to_string(i) + ": " + std::to_string(value) + ", not " +
                    std::to_string(y[static_cast<size_t>(i)]);
          }
        }
    const auto count = static_cast<double>(found.size());
    EXPECT_LE(worst, most) << kernel << ", " << c_.name() << ": " << wrong << " of " << count << " wrong, the worst at "
                           << where;
    EXPECT_LE(sum / count, mean) << kernel << ", " << c_.name();
  }

 private:
  static void fill(std::vector<T>& values, int64_t count, uint64_t seed, double scale) {
    for (int64_t i = 0; i < count; ++i)
      values.push_back(T(static_cast<float>((2 * uniform_at(seed, 7, static_cast<uint64_t>(i)) - 1) * scale)));
  }
  int64_t at(int64_t s, int64_t p, int64_t h) const { return ((s * c_.positions + p) * c_.heads + h) * c_.head_width; }
  const float* key(int64_t s, int64_t position, int64_t h) const {
    const int64_t group = h / (c_.heads / c_.kv_heads);
    return &cache_values_[static_cast<size_t>(((s * capacity_ + position) * 2 * c_.kv_heads + group) * c_.head_width)];
  }
  const float* value(int64_t s, int64_t position, int64_t h) const {
    return key(s, position, h) + int64_t{c_.kv_heads} * c_.head_width;
  }

  int64_t keys_of(int64_t p) const { return c_.first + p + 1; }
  int64_t seen_from(int64_t p) const { return c_.window > 0 ? std::max<int64_t>(0, keys_of(p) - c_.window) : 0; }

  // Of all keys up to the query's own; those that it does not see are far below all others.
  std::vector<double> scores(int64_t s, int64_t p, int64_t h) const {
    const float* q = &query_values_[static_cast<size_t>(at(s, p, h))];
    std::vector<double> all(static_cast<size_t>(keys_of(p)), -1e300);
    for (int64_t j = seen_from(p); j < keys_of(p); ++j) {
      const float* k = key(s, j, h);
      double score = 0;
      for (int64_t i = 0; i < c_.head_width; ++i) score += double{q[i]} * k[i];
      if (c_.rounding.exists()) score = double{c_.rounding.scale} * c_.rounding.scores(static_cast<float>(score));
      all[static_cast<size_t>(j)] = score;
    }
    return all;
  }

  std::vector<double> expected(int64_t s, int64_t p, int64_t h) const {
    const int64_t d = c_.head_width, keys = keys_of(p);
    std::vector<double> weights = scores(s, p, h), y(static_cast<size_t>(d));
    const double largest = *std::ranges::max_element(weights);
    double sum = 0;
    for (double& weight : weights) sum += weight = std::exp2(weight - largest);
    for (int64_t j = seen_from(p); j < keys; ++j) {
      double weight = weights[static_cast<size_t>(j)] / sum;
      if (c_.rounding.exists()) weight = kWeights(static_cast<float>(weight));
      const float* v = value(s, j, h);
      for (int64_t i = 0; i < d; ++i) y[static_cast<size_t>(i)] += weight * v[i];
    }
    if (c_.exclusive) {
      const float* own = value(s, keys - 1, h);
      double along = 0, squares = 0;
      for (int64_t i = 0; i < d; ++i) {
        along += y[static_cast<size_t>(i)] * double{own[i]};
        squares += double{own[i]} * double{own[i]};
      }
      for (int64_t i = 0; i < d; ++i) y[static_cast<size_t>(i)] -= along / squares * double{own[i]};
    }
    if (c_.rounding.exists())
      for (double& v : y) v = c_.rounding.outputs(static_cast<float>(v));
    return y;
  }

  Case c_;
  int64_t capacity_;
  std::vector<T> query_, cache_;
  std::vector<float> query_values_, cache_values_;
};

// Do the first elements of `all` have the same bits?
template <typename T>
void expect_same_start(const std::vector<T>& first, const std::vector<T>& all, const std::string& name) {
  for (size_t i = 0; i < first.size(); ++i)
    ASSERT_EQ(static_cast<float>(first[i]), static_cast<float>(all.at(i))) << name << " element " << i;
}

// Values are within 1: outputs are rounded to T, and weights before they meet the values.
template <typename T>
constexpr double kMost = sizeof(T) == 4              ? 1e-4
                         : std::is_same_v<T, __half> ? 0.004
                                                     : 0.03;
template <typename T>
constexpr double kMean = kMost<T> / 10;

template <typename T>
void launch_sm90(const AttentionOperands<T>& operands, int head_width, cudaStream_t stream) {
  ASSERT_EQ(head_width, kSm90HeadWidth);
  launch_window_attention_sm90(operands, stream);
}

using CudaAttention = CudaTest;

template <typename T>
void expect_windows() {
  for (int width : {32, 64, 128, 256})
    for (bool exclusive : {false, true}) {
      AttentionCheck<T>({.head_width = width, .first = 0, .positions = 200, .exclusive = exclusive})
          .expect(launch_window_attention<T>, "window", kMost<T>, kMean<T>);
      AttentionCheck<T>({.head_width = width, .first = 70, .positions = 65, .heads = 3, .kv_heads = 3, .spread = 15})
          .expect(launch_window_attention<T>, "window", kMost<T>, kMean<T>);
    }
}
TEST_F(CudaAttention, OfWindowsInFp32) { expect_windows<float>(); }
TEST_F(CudaAttention, OfWindowsInBf16) { expect_windows<__nv_bfloat16>(); }
TEST_F(CudaAttention, OfWindowsInFp16) { expect_windows<__half>(); }

template <typename T>
void expect_steps() {
  for (int width : {32, 64, 128, 256})
    for (int first : {0, 1, 5, 15, 16, 31, 32, 127, 128, 300}) {
      AttentionCheck<T>({.head_width = width, .first = first, .positions = 1, .sequences = 3, .exclusive = first == 5})
          .expect(launch_step_attention<T>, "step", kMost<T>, kMean<T>);
      // Query heads that share a key head: more than a kernel takes at once, and a number that does not divide evenly.
      for (int heads : {16, 20})
        AttentionCheck<T>(
            {.head_width = width, .first = first, .positions = 1, .heads = heads, .kv_heads = heads == 16 ? 1 : 2})
            .expect(launch_step_attention<T>, "step", kMost<T>, kMean<T>);
      AttentionCheck<T>({.head_width = width, .first = first, .positions = 1, .heads = 3, .kv_heads = 1, .spread = 15})
          .expect(launch_step_attention<T>, "step", kMost<T>, kMean<T>);
    }
}
// Windows shorter than a tile of 64 keys, that begin within one or with one, and as long as all that there is.
template <typename T>
void expect_sliding_windows() {
  for (int width : {32, 64, 128, 256})
    for (int window : {1, 5, 64, 100, 200}) {
      AttentionCheck<T>({.head_width = width, .first = 0, .positions = 200, .exclusive = window == 5, .window = window})
          .expect(launch_window_attention<T>, "window", kMost<T>, kMean<T>);
      AttentionCheck<T>({.head_width = width, .first = 170, .positions = 65, .spread = 15, .window = window})
          .expect(launch_window_attention<T>, "window", kMost<T>, kMean<T>);
      AttentionCheck<T>({.head_width = width, .first = 300, .positions = 1, .sequences = 3, .window = window})
          .expect(launch_step_attention<T>, "step", kMost<T>, kMean<T>);
    }
}
TEST_F(CudaAttention, OfSlidingWindowsInFp32) { expect_sliding_windows<float>(); }
TEST_F(CudaAttention, OfSlidingWindowsInBf16) { expect_sliding_windows<__nv_bfloat16>(); }
TEST_F(CudaAttention, OfSlidingWindowsInFp16) { expect_sliding_windows<__half>(); }

TEST_F(CudaAttention, OfStepsInFp32) { expect_steps<float>(); }
TEST_F(CudaAttention, OfStepsInBf16) { expect_steps<__nv_bfloat16>(); }
TEST_F(CudaAttention, OfStepsInFp16) { expect_steps<__half>(); }

// The scores of 1000 positions pass every stage of the rings several times; 15 and 40 rise above what fp16 can hold.
template <typename T>
void expect_sm90_windows() {
  if (!has_sm90_kernels()) GTEST_SKIP() << "no code for sm_90a, or another device";
  for (int positions : {1, 63, 200, 385, 1000})
    for (bool exclusive : {false, true})
      for (double spread : {3.0, 15.0, 40.0})
        AttentionCheck<T>({.head_width = 64,
                           .first = positions == 200 ? 130 : 0,
                           .positions = positions,
                           .sequences = positions < 1000 ? 2 : 1,
                           .exclusive = exclusive,
                           .spread = spread})
            .expect(launch_sm90<T>, "sm_90 with a running maximum", kMost<T>, kMean<T>);
}
TEST_F(CudaAttention, OfWindowsOnSm90InBf16) { expect_sm90_windows<__nv_bfloat16>(); }
TEST_F(CudaAttention, OfWindowsOnSm90InFp16) { expect_sm90_windows<__half>(); }

TEST_F(CudaAttention, OfBoundedScoresOnSm90) {
  if (!has_sm90_kernels()) GTEST_SKIP() << "no code for sm_90a, or another device";
  for (int positions : {1, 63, 200, 385, 1000})
    for (double spread : {3.0, 10.0})
      AttentionCheck<__nv_bfloat16>(
          {.head_width = 64, .first = 0, .positions = positions, .sequences = 1, .spread = spread, .largest_score = 90})
          .expect(launch_sm90<__nv_bfloat16>, "sm_90", kMost<__nv_bfloat16>, kMean<__nv_bfloat16>);
}

// Later scores so far above those of the first keys that weights leave float32: of some rows, of most, at the end
// alone.
TEST_F(CudaAttention, OfScoresThatGrowOnSm90) {
  if (!has_sm90_kernels()) GTEST_SKIP() << "no code for sm_90a, or another device";
  struct Growth {
    int from;
    double spread;
  };
  for (const auto& [from, spread] : {Growth{128, 40}, {150, 12}, {150, 4}, {300, 90}, {450, 5}}) {
    const AttentionCheck<__nv_bfloat16> check(
        {.head_width = 64, .first = 0, .positions = 500, .exclusive = spread == 12, .spread = spread, .grown = from});
    EXPECT_GT(check.grown_rows(128, 70), 0);
    EXPECT_LT(check.grown_rows(128, 60), check.rows());
    check.expect(launch_sm90<__nv_bfloat16>, "sm90", kMost<__nv_bfloat16>, kMean<__nv_bfloat16>);
    // Who shares a tile with a row changes nothing.
    const AttentionCheck<__nv_bfloat16> part = check.from(101);
    expect_same_start(part.run(launch_sm90<__nv_bfloat16>), part.last_rows(check.run(launch_sm90<__nv_bfloat16>)),
                      "keys grown from " + std::to_string(from));
  }
}

// A score or a weight whose rounding falls to the other side moves an output by a part of a bf16 step at most; outputs
// of 0.25 to 1 lie 2^-9 to 2^-8 apart.
TEST_F(CudaAttention, RoundsAsTheNumericModesSay) {
  constexpr double kMostRounded = 0.01, kMeanRounded = 2e-5;
  for (int window : {5, 100})
    AttentionCheck<__nv_bfloat16>(
        {.head_width = 64, .first = 70, .positions = 165, .spread = 0.6, .rounding = kRounded, .window = window})
        .expect(launch_window_attention<__nv_bfloat16>, "rounded window", kMostRounded, kMeanRounded);
  for (const AttentionRounding& rounding : {kRounded, kLegacy})
    for (int width : {32, 64, 128, 256}) {
      for (bool exclusive : {false, true})
        AttentionCheck<__nv_bfloat16>({.head_width = width,
                                       .first = 0,
                                       .positions = 200,
                                       .exclusive = exclusive,
                                       .spread = 0.6,
                                       .rounding = rounding})
            .expect(launch_window_attention<__nv_bfloat16>, "rounded window", kMostRounded, kMeanRounded);
      AttentionCheck<__nv_bfloat16>({.head_width = width,
                                     .first = 70,
                                     .positions = 65,
                                     .heads = 3,
                                     .kv_heads = 3,
                                     .spread = 0.6,
                                     .rounding = rounding})
          .expect(launch_window_attention<__nv_bfloat16>, "rounded window", kMostRounded, kMeanRounded);
      for (int first : {0, 1, 5, 31, 32, 300})
        for (int kv_heads : {1, 2, 4})
          AttentionCheck<__nv_bfloat16>({.head_width = width,
                                         .first = first,
                                         .positions = 1,
                                         .sequences = 3,
                                         .kv_heads = kv_heads,
                                         .exclusive = first == 5,
                                         .spread = 0.6,
                                         .rounding = rounding})
              .expect(launch_step_attention<__nv_bfloat16>, "rounded step", kMostRounded, kMeanRounded);
    }
}

// The same bits whatever other sequences are there.
TEST_F(CudaAttention, SequencesDoNotDependOnEachOther) {
  for (const AttentionRounding& rounding : {AttentionRounding{}, kRounded}) {
    Case both{.head_width = 64, .first = 0, .positions = 200, .spread = 0.6, .rounding = rounding}, one = both;
    one.sequences = 1;
    std::vector<Launch<__nv_bfloat16>> launches = {launch_window_attention<__nv_bfloat16>};
    if (!rounding.exists() && has_sm90_kernels()) launches.push_back(launch_sm90<__nv_bfloat16>);
    for (Launch<__nv_bfloat16> launch : launches) {
      const auto together = AttentionCheck<__nv_bfloat16>(both).run(launch),
                 alone = AttentionCheck<__nv_bfloat16>(one).run(launch);
      expect_same_start(alone, together, both.name());
    }
  }
}

// Also of so many that their CTAs have fewer warps each.
TEST_F(CudaAttention, StepsDoNotDependOnTheNumberOfSequences) {
  for (int width : {32, 64, 128})
    for (const auto& [first, window] : {std::pair(2, 0), {40, 0}, {290, 0}, {290, 200}}) {
      Case many{.head_width = width, .first = first, .positions = 1, .exclusive = true, .window = window}, few = many;
      many.sequences = 150;
      few.sequences = 3;
      const auto together = AttentionCheck<__nv_bfloat16>(many).run(launch_step_attention<__nv_bfloat16>),
                 alone = AttentionCheck<__nv_bfloat16>(few).run(launch_step_attention<__nv_bfloat16>);
      expect_same_start(alone, together, many.name());
    }
}

}  // namespace
}  // namespace thimble::cuda_attention_test
