// cuda_gradient_kernels_test.cpp: attention in each arithmetic and storage forwards and back, losses and sums over rows
// on the device against the CPU's, on awkward widths, between NaN guards, into memory full of NaN.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "runtime/cpu/cpu_kernels.h"
#include "runtime/cpu/gradient_ops.h"
#include "runtime/cuda/kernels/attention/cuda_bf16_attention.cuh"
#include "runtime/cuda/kernels/cuda_column_dots.cuh"
#include "runtime/cuda/kernels/cuda_loss.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/cuda/kernels/device_copy.h"
#include "tests/runtime/ops/random_tokens.h"

namespace thimble::cuda_gradient_kernels_test {
namespace {

constexpr double kTolerance = 1e-5;  // relative to the largest value

struct Extent {
  int64_t sequences, positions, columns;
  int64_t rows() const { return sequences * positions; }
};

class CudaGradientKernels : public CudaTest {
 protected:
  // The window `s` of a batch.
  static ConstMatrixView window(const Matrix& rows, const Extent& e, int64_t s) {
    return rows.view().block_rows(s * e.positions, e.positions);
  }
  static MatrixView window(Matrix& rows, const Extent& e, int64_t s) {
    return rows.view().block_rows(s * e.positions, e.positions);
  }
};

// softmax(scale q k^T) v in float64, head by head.
void naive_attention(ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, const op::Attention& o, MatrixView y) {
  const int64_t d = o.head_dim;
  for (int64_t p = 0; p < q.rows; ++p)
    for (int64_t h = 0; h < o.heads; ++h) {
      const int64_t query = h * d, key = h / (o.heads / o.kv_heads) * d;
      std::vector<double> weights, out(static_cast<size_t>(d));
      double peak = -INFINITY, sum = 0;
      const int64_t first = o.window > 0 ? std::max<int64_t>(0, p + 1 - o.window) : 0;
      for (int64_t j = first; j <= p; ++j) {
        double score = 0;
        for (int64_t c = 0; c < d; ++c) score += double{q.row(p)[query + c]} * k.row(j)[key + c];
        weights.push_back(score * o.scale);
        peak = std::max(peak, weights.back());
      }
      for (double& weight : weights) sum += weight = std::exp(weight - peak);
      for (int64_t c = 0; c < d; ++c)
        for (int64_t j = first; j <= p; ++j)
          out[static_cast<size_t>(c)] += weights[static_cast<size_t>(j - first)] / sum * v.row(j)[key + c];
      double along = 0, squares = 0;
      for (int64_t c = 0; c < d; ++c) {
        along += out[static_cast<size_t>(c)] * v.row(p)[key + c];
        squares += double{v.row(p)[key + c]} * v.row(p)[key + c];
      }
      const double removed = o.exclusive && squares > 0 ? along / squares : 0;
      for (int64_t c = 0; c < d; ++c)
        y.row(p)[query + c] = static_cast<float>(out[static_cast<size_t>(c)] - removed * v.row(p)[key + c]);
    }
}

struct AttentionCase {
  int64_t heads, kv_heads, head_dim;
  Extent e;
  int64_t window = 0;
};
constexpr AttentionCase kAttentionCases[] = {
    {1, 1, 1, {1, 1, 1}},
    {4, 2, 6, {2, 1, 24}},
    {4, 2, 6, {3, 23, 24}},
    {6, 2, 5, {1, 130, 30}},
    {2, 2, 64, {2, 128, 128}},
    {8, 4, 64, {1, 300, 512}},
    {3, 1, 129, {1, 257, 387}},
    {4, 2, 6, {3, 23, 24}, 5},
    {2, 1, 64, {1, 300, 128}, 130},
    {6, 2, 96, {2, 150, 576}, 70},
    {4, 4, 128, {1, 200, 512}},
    {64, 64, 8, {3, 257, 512}},
    {32, 16, 40, {11, 260, 1280}, 70},
    {8, 4, 64, {9, 260, 512}},
};

// check(shape, case, q, k, v, dy, y, dq, dk, dv): inputs, and what the CPU makes of them.
template <typename Window, typename Check>
void for_each_attention(const Window& window, const Check& check) {
  for (bool exclusive : {false, true})
    for (const AttentionCase& t : kAttentionCases) {
      SCOPED_TRACE(::testing::Message() << t.heads << " heads of " << t.head_dim << " over " << t.e.sequences << " x "
                                        << t.e.positions << (exclusive ? ", exclusive" : ""));
      const op::Attention shape{.heads = t.heads,
                                .kv_heads = t.kv_heads,
                                .head_dim = t.head_dim,
                                .scale = 1.0f / std::sqrt(static_cast<float>(t.head_dim)),
                                .exclusive = exclusive,
                                .cache = 0,
                                .window = t.window};
      int64_t rows = t.e.rows(), wide = t.e.columns, narrow = t.kv_heads * t.head_dim;
      Matrix q = random_values(rows, wide, 1, -2, 2), k = random_values(rows, narrow, 2, -2, 2),
             v = random_values(rows, narrow, 3), dy = random_values(rows, wide, 4);
      if (rows > 1) std::fill(v.row(rows - 1), v.row(rows - 1) + narrow, 0.0f);  // XSA: no direction
      Matrix y(rows, wide), dq(rows, wide), dk(rows, narrow), dv(rows, narrow);
      for (int64_t s = 0; s < t.e.sequences; ++s) {
        naive_attention(window(q, t.e, s), window(k, t.e, s), window(v, t.e, s), shape, window(y, t.e, s));
        attention_backward(window(q, t.e, s), window(k, t.e, s), window(v, t.e, s), shape, window(dy, t.e, s),
                           window(dq, t.e, s), window(dk, t.e, s), window(dv, t.e, s));
      }
      check(shape, t, q, k, v, dy, y, dq, dk, dv);
    }
}

TEST_F(CudaGradientKernels, Attention) {
  for (const auto& [arithmetic, tolerance] :
       {std::pair(ProductArithmetic::kFloat32, 2 * kTolerance), std::pair(ProductArithmetic::kBf16, 2e-2)}) {
    SCOPED_TRACE(arithmetic == ProductArithmetic::kBf16 ? "products in bf16" : "in float32");
    auto check = [&](const op::Attention& shape, const AttentionCase& t, const Matrix& q, const Matrix& k,
                     const Matrix& v, const Matrix& dy, const Matrix& y, const Matrix& dq, const Matrix& dk,
                     const Matrix& dv) {
      CudaFloatAttention attention(arithmetic);
      BatchShape batch{t.e.sequences, t.e.positions};
      DeviceCopy gq(q), gk(k), gv(v), gdy(dy),
          gy = DeviceCopy::poisoned(q.rows(), q.cols()), gdq = DeviceCopy::poisoned(q.rows(), q.cols()),
          gdk = DeviceCopy::poisoned(k.rows(), k.cols()), gdv = DeviceCopy::poisoned(v.rows(), v.cols());
      attention.forward(gq, gk, gv, shape, batch, gy, nullptr);
      expect_near(gy.download(), y, tolerance);
      attention.backward(gq, gk, gv, shape, batch, gdy, gdq, gdk, gdv, nullptr);
      expect_near(gdq.download(), dq, 2 * tolerance);
      expect_near(gdk.download(), dk, 2 * tolerance);
      expect_near(gdv.download(), dv, 2 * tolerance);
    };
    for_each_attention([&](auto& rows, const Extent& e, int64_t s) { return window(rows, e, s); }, check);
  }
}

// Aligned as the kernels read rows, and not.
TEST_F(CudaGradientKernels, AttentionInBf16) {
  constexpr double kBf16Tolerance = 2e-2;
  for (int64_t guard : {7, 8}) {
    SCOPED_TRACE(guard);
    auto check = [&](const op::Attention& shape, const AttentionCase& t, const Matrix& q, const Matrix& k,
                     const Matrix& v, const Matrix& dy, const Matrix& y, const Matrix& dq, const Matrix& dk,
                     const Matrix& dv) {
      CudaBf16Attention attention;
      CudaAttentionSums sums;
      BatchShape batch{t.e.sequences, t.e.positions};
      auto poisoned = [&](const Matrix& like) { return Bf16DeviceCopy::poisoned(like.rows(), like.cols(), guard); };
      Bf16DeviceCopy gq(q, guard), gk(k, guard), gv(v, guard), gdy(dy, guard), gy = poisoned(q), gdq = poisoned(q),
                                                                               gdk = poisoned(k), gdv = poisoned(v);
      attention.forward(gq, gk, gv, shape, batch, sums, gy, nullptr);
      expect_near(gy.download(), y, kBf16Tolerance);
      attention.backward(gq, gk, gv, gy, gdy, shape, batch, sums, gdq, gdk, gdv, nullptr);
      expect_near(gdq.download(), dq, 2 * kBf16Tolerance);
      expect_near(gdk.download(), dk, 2 * kBf16Tolerance);
      expect_near(gdv.download(), dv, 2 * kBf16Tolerance);
    };
    for_each_attention([&](auto& rows, const Extent& e, int64_t s) { return window(rows, e, s); }, check);
  }
}

TEST_F(CudaGradientKernels, NextTokenLoss) {
  for (int64_t columns : {1, 29, 1024, 5003}) {
    constexpr int64_t kRows = 9;
    constexpr float kCap = 5;
    Matrix z = random_values(kRows, columns, 1, -20, 20), l = z;
    for (float& logit : l.values()) logit = kCap * std::tanh(logit / kCap);
    const std::vector<Token> targets = random_tokens(kRows, columns, 5);
    DeviceArray<int32_t> tokens{std::span<const int32_t>(targets)};
    DeviceCopy gz(z), gdz = DeviceCopy::poisoned(kRows, columns), losses = DeviceCopy::poisoned(kRows, 1);
    launch_loss_backward(gz, kCap, CudaTargets::next_tokens(tokens.data()), gdz.view(), losses.data(), nullptr);
    double expected = nll_backward(l, targets, kCap), found = 0;
    const Matrix of_rows = losses.download();
    for (float loss : of_rows.values()) found += static_cast<double>(loss);
    EXPECT_NEAR(found, expected, 1e-5 * std::max(1.0, expected)) << columns;
    expect_near(gdz.download(), l, kTolerance);
    Bf16DeviceCopy rounded = Bf16DeviceCopy::poisoned(kRows, columns);
    launch_loss_backward(gz, kCap, CudaTargets::next_tokens(tokens.data()), rounded.view(), losses.data(), nullptr);
    expect_near(rounded.download(), l, 0x1p-8);
    EXPECT_EQ(losses.download().values()[0], of_rows.values()[0]);
    launch_loss_backward(gz, kCap, CudaTargets::next_tokens(tokens.data()), gz.view(), losses.data(), nullptr);
    expect_near(gz.download(), gdz.download(), 0);  // in place
  }
}

TEST_F(CudaGradientKernels, DivergenceFromATeacher) {
  for (int64_t columns : {1, 29, 1024}) {
    constexpr int64_t kRows = 6;
    constexpr double kCap = 5;
    Matrix z = random_values(kRows, columns, 1, -10, 10), teacher = random_values(kRows, columns, 2, -5, 5);
    Matrix expected(kRows, columns), expected_losses(kRows, 1);
    for (int64_t r = 0; r < kRows; ++r) {
      double p_sum = 0, q_sum = 0;
      auto l = [&](int64_t c) { return kCap * std::tanh(z(r, c) / kCap); };
      for (int64_t c = 0; c < columns; ++c) {
        p_sum += std::exp(l(c));
        q_sum += std::exp(double{teacher(r, c)});
      }
      double divergence = 0;
      for (int64_t c = 0; c < columns; ++c) {
        double p = std::exp(l(c)) / p_sum, q = std::exp(double{teacher(r, c)}) / q_sum;
        divergence += q * std::log(q / p);
        expected(r, c) = static_cast<float>((p - q) * (1 - l(c) / kCap * (l(c) / kCap)));
      }
      expected_losses(r, 0) = static_cast<float>(divergence);
    }
    DeviceCopy gz(z), gt(teacher), gdz = DeviceCopy::poisoned(kRows, columns), losses = DeviceCopy::poisoned(kRows, 1);
    launch_loss_backward(gz, kCap, CudaTargets::teacher(gt.data()), gdz.view(), losses.data(), nullptr);
    expect_near(gdz.download(), expected, kTolerance);
    expect_near(losses.download(), expected_losses, kTolerance);
  }
}

TEST_F(CudaGradientKernels, ColumnDots) {
  CudaColumnDots dots;
  for (const Extent& e :
       {Extent{1, 1, 1}, Extent{3, 1, 33}, Extent{2, 255, 7}, Extent{2, 257, 40}, Extent{1, 700, 129}}) {
    SCOPED_TRACE(::testing::Message() << e.sequences << " x " << e.positions << " x " << e.columns);
    Matrix a = random_values(e.rows(), e.columns, 1), b = random_values(e.rows(), e.columns, 2);
    DeviceCopy da(a), db(b);
    std::vector<double> sums(static_cast<size_t>(e.columns), 5.0), alone = sums;
    DeviceArray<double> together{std::span<const double>(sums)}, apart{std::span<const double>(sums)};
    dots.add(da.const_view(), db.const_view(), {e.sequences, e.positions}, together.data(), {}, nullptr);
    for (int64_t s = 0; s < e.sequences; ++s) {
      int64_t first = s * e.positions * e.columns;
      dots.add(ConstCudaView(da.data() + first, e.positions, e.columns),
               ConstCudaView(db.data() + first, e.positions, e.columns), {1, e.positions}, apart.data(), {}, nullptr);
    }
    dots.finish(nullptr);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    check_cuda(cudaMemcpy(sums.data(), together.data(), together.bytes(), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(alone.data(), apart.data(), apart.bytes(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(sums, alone);  // whatever the batch
    std::vector<double> expected = column_dots(a, b);
    for (size_t c = 0; c < sums.size(); ++c) EXPECT_NEAR(sums[c], expected[c] + 5, 1e-12) << c;
    const Bf16DeviceCopy ra(a), rb(b);  // of what these have been rounded to, and with float32
    expected = column_dots(ra.download(), rb.download());
    const std::vector<double> mixed = column_dots(ra.download(), b);
    const std::vector<double> zeros(sums.size());
    DeviceArray<double> of_rounded{std::span<const double>(zeros)}, of_mixed{std::span<const double>(zeros)};
    dots.add(ra.const_view(), rb.const_view(), {e.sequences, e.positions}, of_rounded.data(), {}, nullptr);
    dots.add(ra.const_view(), db.const_view(), {e.sequences, e.positions}, of_mixed.data(), {}, nullptr);
    dots.finish(nullptr);
    check_cuda(cudaMemcpy(sums.data(), of_rounded.data(), of_rounded.bytes(), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(alone.data(), of_mixed.data(), of_mixed.bytes(), cudaMemcpyDeviceToHost));
    for (size_t c = 0; c < sums.size(); ++c) {
      EXPECT_NEAR(sums[c], expected[c], 1e-12) << c;
      EXPECT_NEAR(alone[c], mixed[c], 1e-12) << c;
    }
  }
}

TEST_F(CudaGradientKernels, ColumnDotsFindTheFirstTermThatIsNotFinite) {
  constexpr int64_t kSequences = 3, kPositions = 600, kColumns = 50;
  Matrix a = random_values(kSequences * kPositions, kColumns, 1);
  a(kPositions + 411, 40) = NAN;
  a(kPositions + 17, 41) = INFINITY;
  a(2 * kPositions, 0) = NAN;
  DeviceCopy da(a);
  std::vector<double> zeros(kColumns);
  std::vector<unsigned long long> none = {CudaBadTerm::kNone};
  DeviceArray<double> sums{std::span<const double>(zeros)};
  DeviceArray<unsigned long long> first{std::span<const unsigned long long>(none)};
  CudaColumnDots dots;
  dots.add(da.const_view(), da.const_view(), {kSequences, kPositions}, sums.data(), {first.data(), 10}, nullptr);
  check_cuda(cudaDeviceSynchronize());
  check_cuda(cudaMemcpy(none.data(), first.data(), first.bytes(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(none[0], static_cast<unsigned long long>((11 * kColumns + 40) * CudaBadTerm::kPositions + 411));
}

}  // namespace
}  // namespace thimble::cuda_gradient_kernels_test
