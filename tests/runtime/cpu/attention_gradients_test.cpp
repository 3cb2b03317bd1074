// attention_gradients_test.cpp: the transpose of attention against central differences of a plain float64 pass, over
// one query, grouped heads and several query tiles. Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/parallel.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gradient_ops.h"
#include "tests/runtime/cpu/gradient_check.h"
#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::attention_gradients_test {
namespace {

struct AttentionCase {
  int64_t positions;
  op::Attention shape;
};

AttentionCase attention_case(int64_t positions, int64_t heads, int64_t kv_heads, int64_t head_dim, bool exclusive,
                             float scale = 0, int64_t window = 0) {
  return {positions,
          {.heads = heads,
           .kv_heads = kv_heads,
           .head_dim = head_dim,
           .scale = scale,
           .exclusive = exclusive,
           .window = window}};
}

class AttentionGradient : public ::testing::TestWithParam<AttentionCase> {
 protected:
  AttentionGradient() {
    q_.fill_random(1, 2);
    k_.fill_random(2, 2);
    v_.fill_random(3);
    dy_.fill_random(4);
  }

  op::Attention operation() const {
    const float scale = shape_.scale > 0 ? shape_.scale : 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    return {shape_.heads, shape_.kv_heads, shape_.head_dim, scale, shape_.exclusive, 0, shape_.window};
  }
  SmallNetwork network() const {
    return {{plain(q_), plain(k_), plain(v_)}, width_, {}, [this](Ops& ops, const auto& in) {
              return ops.attention(in[0], in[1], in[2], shape_);
            }};
  }
  static Matrix plain(const GuardedMatrix& x) {
    return filled(x.rows(), x.cols(), [&](int64_t r, int64_t c) { return double{x(r, c)}; });
  }

  const op::Attention shape_ = GetParam().shape;
  const int64_t width_ = shape_.heads * shape_.head_dim, kv_width_ = shape_.kv_heads * shape_.head_dim;
  GuardedMatrix q_{GetParam().positions, width_}, k_{GetParam().positions, kv_width_};
  GuardedMatrix v_{GetParam().positions, kv_width_}, dy_{GetParam().positions, width_};
};

// One query; one head; grouped heads; several query tiles, as many as parts and more; another scale.
INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradient,
                         ::testing::Values(attention_case(1, 1, 1, 3, false), attention_case(1, 2, 1, 8, true),
                                           attention_case(9, 1, 1, 5, true), attention_case(12, 4, 2, 6, false),
                                           attention_case(12, 6, 2, 5, true), attention_case(12, 3, 3, 16, true),
                                           attention_case(12, 2, 1, 6, false, 0.9f), attention_case(130, 2, 1, 4, true),
                                           attention_case(700, 1, 1, 4, true), attention_case(12, 4, 2, 6, false, 0, 5),
                                           attention_case(9, 2, 1, 5, true, 0, 1),
                                           attention_case(300, 2, 1, 4, false, 0, 40)));

TEST_P(AttentionGradient, MatchesCentralDifferences) {
  const auto terms = static_cast<double>(8 * shape_.head_dim + GetParam().positions);
  for (Inputs how : kAllInputs) {
    if (how == Inputs::kOwn && GetParam().positions > 100) continue;  // takes long
    expect_gradients(weights_of(network(), how, /*has_head=*/true), row_batch({1, GetParam().positions, 0}), terms);
  }
}

// Queries, keys and values that are one value, or that others read: gradients add up.
TEST_P(AttentionGradient, AddsToOtherGradients) {
  const auto terms = static_cast<double>(3 * (8 * shape_.head_dim + GetParam().positions));
  SmallNetwork small = network();
  small.write = [this](Ops& ops, const auto& in) {
    const Value keys = shape_.heads == shape_.kv_heads ? in[0] : in[1];
    const Value values = shape_.heads == shape_.kv_heads ? in[0] : in[2];
    const Value once = ops.attention(in[0], keys, values, shape_);
    return ops.add(ops.attention(once, keys, values, shape_), in[0], Sum::kMlp);
  };
  for (Inputs how : kAllInputs) {
    if (how == Inputs::kOwn && GetParam().positions > 100) continue;  // takes long
    expect_gradients(weights_of(small, how, /*has_head=*/true), row_batch({1, GetParam().positions, 0}), terms);
  }
}

struct AttentionGradients {
  GuardedMatrix dq, dk, dv;
};

TEST_P(AttentionGradient, ThreadsDoNotChangeBits) {
  auto gradients = [&] {
    AttentionGradients found{{q_.rows(), q_.cols()}, {k_.rows(), k_.cols()}, {k_.rows(), k_.cols()}};
    attention_backward(q_, k_, v_, operation(), dy_, found.dq, found.dk, found.dv);
    for (const GuardedMatrix* gradient : {&found.dq, &found.dk, &found.dv}) EXPECT_TRUE(gradient->guards_intact());
    return found;
  };
  const AttentionGradients first = gradients();
  for (int threads : {1, 3}) {
    ThreadLimit limit(threads);
    const AttentionGradients again = gradients();
    EXPECT_EQ(again.dq, first.dq);
    EXPECT_EQ(again.dk, first.dk);
    EXPECT_EQ(again.dv, first.dv);
  }
}

// Products whose factors are rounded to bf16 change gradients by about as much, and no more at any thread count.
TEST_P(AttentionGradient, InBf16IsNearlyThat) {
  auto gradients = [&](ProductArithmetic arithmetic) {
    AttentionGradients found{{q_.rows(), q_.cols()}, {k_.rows(), k_.cols()}, {k_.rows(), k_.cols()}};
    attention_backward(q_, k_, v_, operation(), dy_, found.dq, found.dk, found.dv, arithmetic);
    for (const GuardedMatrix* gradient : {&found.dq, &found.dk, &found.dv}) EXPECT_TRUE(gradient->guards_intact());
    return found;
  };
  const AttentionGradients exact = gradients(ProductArithmetic::kFloat32);
  const AttentionGradients rounded = gradients(ProductArithmetic::kBf16);
  double squares = 0;  // of what comes in, for what goes out may be no more than rounding
  for (int64_t r = 0; r < dy_.rows(); ++r)
    for (int64_t c = 0; c < dy_.cols(); ++c) squares += std::pow(dy_(r, c), 2);
  for (auto which : {&AttentionGradients::dq, &AttentionGradients::dk, &AttentionGradients::dv}) {
    double errors = 0;
    for (int64_t r = 0; r < (exact.*which).rows(); ++r)
      for (int64_t c = 0; c < (exact.*which).cols(); ++c)
        errors += std::pow((rounded.*which)(r, c) - (exact.*which)(r, c), 2);
    EXPECT_LE(std::sqrt(errors), 0.01 * std::sqrt(squares));
  }
  EXPECT_EQ(rounded.dv == exact.dv, !cpu_instruction_set(ProductArithmetic::kBf16).ends_with("bf16"));
  ThreadLimit limit(3);
  const AttentionGradients again = gradients(ProductArithmetic::kBf16);
  EXPECT_EQ(again.dq, rounded.dq);
  EXPECT_EQ(again.dk, rounded.dk);
  EXPECT_EQ(again.dv, rounded.dv);
}

TEST(GradientOps, ExclusiveAttentionOfAZeroValueIsFinite) {
  GuardedMatrix q(3, 4), k(3, 4), v(3, 4), dy(3, 4), dq(3, 4), dk(3, 4), dv(3, 4);
  q.fill_random(1);
  k.fill_random(2);
  v.fill([](int64_t, int64_t) { return 0; });
  dy.fill_random(3);
  attention_backward(q, k, v, op::Attention{1, 1, 4, 0.5f, true, 0, 0}, dy, dq, dk, dv);
  for (const GuardedMatrix* gradient : {&dq, &dk, &dv})
    for (int64_t p = 0; p < 3; ++p)
      for (int64_t i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite((*gradient)(p, i)));
}

}  // namespace
}  // namespace thimble::attention_gradients_test
