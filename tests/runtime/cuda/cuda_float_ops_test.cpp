// cuda_float_ops_test.cpp: every operation of the passes in device memory against the CPU's, on awkward widths, between
// NaN guards, into memory full of NaN.
#include "runtime/cuda/cuda_float_ops.cuh"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/cpu/forward.h"
#include "runtime/cpu/gradient_ops.h"
#include "runtime/cuda/kernels/cuda_column_dots.cuh"
#include "runtime/cuda/kernels/cuda_float_attention.cuh"
#include "runtime/cuda/kernels/cuda_loss.cuh"
#include "tests/runtime/cuda/kernels/cuda_device.h"
#include "tests/runtime/cuda/kernels/device_copy.h"
#include "tests/runtime/families/golf/random_model.h"

namespace thimble {
namespace {

constexpr double kTolerance = 1e-5;  // relative to the largest value

struct Extent {
  int64_t sequences, positions, columns;
  int64_t rows() const { return sequences * positions; }
};
constexpr Extent kExtents[] = {{1, 1, 1}, {1, 1, 7}, {3, 1, 17}, {1, 5, 64}, {2, 150, 65}, {3, 9, 513}};

std::vector<float> as_vector(const Matrix& values) { return {values.values().begin(), values.values().end()}; }

class CudaFloatOpsTest : public CudaTest {
 protected:
  // The window `s` of a batch.
  static ConstMatrixView window(const Matrix& rows, const Extent& e, int64_t s) {
    return rows.view().block_rows(s * e.positions, e.positions);
  }
  static MatrixView window(Matrix& rows, const Extent& e, int64_t s) {
    return rows.view().block_rows(s * e.positions, e.positions);
  }

  CudaFloatOps ops{nullptr};
  std::unique_ptr<Backend> backend = make_cpu_backend();
};

TEST_F(CudaFloatOpsTest, RowOperations) {
  for (const Extent& e : kExtents) {
    SCOPED_TRACE(testing::Message() << e.rows() << " x " << e.columns);
    Matrix a = random_values(e.rows(), e.columns, 1), b = random_values(e.rows(), e.columns, 2),
           s1 = random_values(1, e.columns, 3), s2 = random_values(1, e.columns, 4, 0, 1), y(e.rows(), e.columns);
    DeviceCopy da(a), db(b), ds1(s1), ds2(s2), dy = DeviceCopy::poisoned(e.rows(), e.columns);
    std::vector<float> v1 = as_vector(s1), v2 = as_vector(s2);

    ops.rms_norm(da, 0.7f, dy);
    backend->rms_norm(a, 0.7f, y);
    expect_near(dy.download(), y, kTolerance);

    ops.mix(da, db, ds1.data(), ds2.data(), dy);
    Matrix normed(e.rows(), e.columns);
    backend->mix_and_norm(a, b, v1, v2, 1, y, normed);
    expect_near(dy.download(), y, kTolerance);

    ops.add(da, ds1.data(), dy);
    backend->add(a, v1, y);
    expect_near(dy.download(), y, kTolerance);
    ops.add_scaled(da, -1.5f, dy);
    backend->add_scaled(a, -1.5f, y);
    expect_near(dy.download(), y, kTolerance);
    for (bool gated : {false, true}) {
      ops.add_skip(db, ds1.data(), gated ? ds2.data() : nullptr, dy);
      backend->add_skip(b, v1, gated ? std::span<const float>(v2) : std::span<const float>(), y);
      expect_near(dy.download(), y, kTolerance);
    }
    ops.leaky_relu_squared(da, dy);
    backend->copy(a, y);
    backend->leaky_relu_squared(y);
    expect_near(dy.download(), y, kTolerance);
    ops.softcap(da, 0.6f, dy);
    backend->copy(a, y);
    backend->softcap(0.6f, y);
    expect_near(dy.download(), y, kTolerance);
  }
}

TEST_F(CudaFloatOpsTest, RowsAreGathered) {
  Matrix table = random_values(5, 33, 1), y(4, 33);
  std::vector<int32_t> index = {4, 0, 0, 3};
  DeviceArray<int32_t> device_index{std::span<const int32_t>(index)};
  DeviceCopy dt(table), dy = DeviceCopy::poisoned(4, 33);
  ops.gather_rows(dt, device_index.data(), dy);
  backend->gather_rows(table, index, y);
  expect_near(dy.download(), y, 0);
}

TEST_F(CudaFloatOpsTest, RowGradients) {
  for (const Extent& e : kExtents) {
    SCOPED_TRACE(testing::Message() << e.rows() << " x " << e.columns);
    Matrix x = random_values(e.rows(), e.columns, 1), dy = random_values(e.rows(), e.columns, 2),
           dx = random_values(e.rows(), e.columns, 3), scale = random_values(1, e.columns, 4);
    x.values()[0] = 0;
    DeviceCopy gx(x), gdy(dy), gdx(dx), gscale(scale), out = DeviceCopy::poisoned(e.rows(), e.columns);

    ops.scale_backward(gdy, gscale.data(), out);
    Matrix expected(e.rows(), e.columns);
    scale_backward(dy, scale.values(), expected);
    expect_near(out.download(), expected, kTolerance);

    ops.rms_norm_backward(gx, 0.7f, gdy, gdx);
    rms_norm_backward(x, 0.7f, dy, dx);
    expect_near(gdx.download(), dx, kTolerance);

    ops.leaky_relu_squared_backward(gx, gdy);
    leaky_relu_squared_backward(x, dy);
    expect_near(gdy.download(), dy, kTolerance);
  }
}

// rms() of a row of zeros: epsilon alone.
TEST_F(CudaFloatOpsTest, RowsOfZeros) {
  Matrix zeros(2, 40), dy = random_values(2, 40, 2), dx(2, 40);
  DeviceCopy gx(zeros), gdy(dy), gdx(dx), y = DeviceCopy::poisoned(2, 40);
  ops.rms_norm(gx, 1, y);
  expect_near(y.download(), zeros, 0);
  ops.rms_norm_backward(gx, 1, gdy, gdx);
  rms_norm_backward(zeros, 1, dy, dx);
  expect_near(gdx.download(), dx, kTolerance);
}

TEST_F(CudaFloatOpsTest, SmearStaysWithinItsWindow) {
  for (const Extent& e : kExtents) {
    SCOPED_TRACE(testing::Message() << e.sequences << " x " << e.positions << " x " << e.columns);
    Matrix x = random_values(e.rows(), e.columns, 1), gate = random_values(1, e.columns, 2, 0, 1),
           nothing(e.sequences, e.columns), y(e.rows(), e.columns);
    DeviceCopy gx(x), ggate(gate), out = DeviceCopy::poisoned(e.rows(), e.columns);
    ops.smear(gx, ggate.data(), e.positions, out);
    backend->smear(x, nothing, gate.values(), {e.sequences, e.positions}, y);
    expect_near(out.download(), y, kTolerance);

    ops.smear_backward(gx, ggate.data(), e.positions, out);
    for (int64_t s = 0; s < e.sequences; ++s) smear_backward(window(x, e, s), gate.values(), window(y, e, s));
    expect_near(out.download(), y, kTolerance);

    ops.smear_gate_direction(gx, e.positions, out);
    Matrix found = out.download();
    for (int64_t r = 0; r < e.rows(); ++r)
      for (int64_t c = 0; c < e.columns; ++c)
        ASSERT_EQ(found(r, c), (r % e.positions == 0 ? 0 : x(r - 1, c)) - x(r, c)) << r << ' ' << c;
  }
}

TEST_F(CudaFloatOpsTest, SkipGateDirection) {
  Matrix previous = random_values(3, 50, 1), skip = random_values(3, 50, 2), weight = random_values(1, 50, 3);
  DeviceCopy gp(previous), gs(skip), gw(weight), out = DeviceCopy::poisoned(3, 50);
  ops.skip_gate_direction(gp, gs, gw.data(), out);
  Matrix found = out.download();
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t c = 0; c < 50; ++c)
      ASSERT_NEAR(found(r, c), double{previous(r, c)} - double{weight(0, c)} * skip(r, c), 1e-6);
}

struct Heads {
  int64_t heads, head_dim, rope_dims;
};
constexpr Heads kHeads[] = {{1, 1, 0}, {2, 2, 2}, {3, 7, 4}, {4, 6, 6}, {2, 64, 16}, {1, 130, 70}};

TEST_F(CudaFloatOpsTest, NormAndRotation) {
  for (const Heads& h : kHeads)
    for (bool gained : {false, true}) {
      SCOPED_TRACE(testing::Message() << h.heads << " heads of " << h.head_dim << ", " << h.rope_dims << " rotate");
      Extent e{2, 11, h.heads * h.head_dim};
      ModelConfig config = small_golf_config();
      config.rope_dims = h.rope_dims;
      RotaryTable rotary = make_rotary_table(config, e.positions);
      std::vector<float2> pairs;
      for (size_t i = 0; i < rotary.cosine.values().size(); ++i)
        pairs.push_back({rotary.cosine.values()[i], rotary.sine.values()[i]});
      pairs.push_back({});  // never empty
      DeviceArray<float2> angles{std::span<const float2>(pairs)};
      Matrix x = random_values(e.rows(), e.columns, 1), dy = random_values(e.rows(), e.columns, 2),
             gains = random_values(1, h.heads, 3);
      DeviceCopy gx(x), gdy(dy), ggains(gains), out = DeviceCopy::poisoned(e.rows(), e.columns);
      HeadRotation rotation{h.head_dim, e.positions, angles.data(), h.rope_dims / 2};
      std::span<const float> gain = gained ? gains.values() : std::span<const float>();

      ops.norm_and_rotate(gx, rotation, gained ? ggains.data() : nullptr, out);
      Matrix y = x;
      backend->norm_and_rotate(y, h.head_dim, rotary, gain, {e.sequences, e.positions});
      expect_near(out.download(), y, kTolerance);
      DeviceCopy in_place(x);
      ops.norm_and_rotate(in_place, rotation, gained ? ggains.data() : nullptr, in_place);
      expect_near(in_place.download(), y, kTolerance);

      ops.norm_and_rotate_backward(gx, rotation, gained ? ggains.data() : nullptr, gdy);
      for (int64_t s = 0; s < e.sequences; ++s)
        norm_and_rotate_backward(window(x, e, s), h.head_dim, rotary, gain, window(dy, e, s));
      expect_near(gdy.download(), dy, kTolerance);
    }
}

TEST_F(CudaFloatOpsTest, Attention) {
  struct Case {
    AttentionShape shape;
    Extent e;
  };
  for (bool exclusive : {false, true})
    for (const Case& t : {Case{{1, 1, 1, exclusive}, {1, 1, 1}}, Case{{4, 2, 6, exclusive}, {2, 1, 24}},
                          Case{{4, 2, 6, exclusive}, {3, 23, 24}}, Case{{6, 2, 5, exclusive}, {1, 130, 30}},
                          Case{{2, 2, 64, exclusive}, {2, 128, 128}}, Case{{8, 4, 64, exclusive}, {1, 300, 512}},
                          Case{{3, 1, 129, exclusive}, {1, 257, 387}}}) {
      SCOPED_TRACE(testing::Message() << t.shape.heads << " heads of " << t.shape.head_dim << " over " << t.e.sequences
                                      << " x " << t.e.positions << (exclusive ? ", exclusive" : ""));
      int64_t rows = t.e.rows(), wide = t.e.columns, narrow = t.shape.kv_heads * t.shape.head_dim;
      Matrix q = random_values(rows, wide, 1, -2, 2), k = random_values(rows, narrow, 2, -2, 2),
             v = random_values(rows, narrow, 3), dy = random_values(rows, wide, 4);
      if (rows > 1) std::fill(v.row(rows - 1), v.row(rows - 1) + narrow, 0.0f);  // XSA: no direction
      Matrix y(rows, wide), dq(rows, wide), dk(rows, narrow), dv(rows, narrow);
      for (int64_t s = 0; s < t.e.sequences; ++s) {
        Matrix keys(t.e.positions, narrow), values(t.e.positions, narrow);
        backend->copy(window(k, t.e, s), keys);
        backend->copy(window(v, t.e, s), values);
        backend->attention(window(q, t.e, s), {keys, values, t.e.positions}, t.shape, {1, t.e.positions},
                           window(y, t.e, s));
        attention_backward(window(q, t.e, s), keys, values, t.shape, window(dy, t.e, s), window(dq, t.e, s),
                           window(dk, t.e, s), window(dv, t.e, s));
      }
      CudaFloatAttention attention;
      BatchShape batch{t.e.sequences, t.e.positions};
      DeviceCopy gq(q), gk(k), gv(v), gdy(dy),
          gy = DeviceCopy::poisoned(rows, wide), gdq = DeviceCopy::poisoned(rows, wide),
          gdk = DeviceCopy::poisoned(rows, narrow), gdv = DeviceCopy::poisoned(rows, narrow);
      attention.forward(gq, gk, gv, t.shape, batch, gy, nullptr);
      expect_near(gy.download(), y, 2 * kTolerance);
      attention.backward(gq, gk, gv, t.shape, batch, gdy, gdq, gdk, gdv, nullptr);
      expect_near(gdq.download(), dq, 4 * kTolerance);
      expect_near(gdk.download(), dk, 4 * kTolerance);
      expect_near(gdv.download(), dv, 4 * kTolerance);
    }
}

TEST_F(CudaFloatOpsTest, NextTokenLoss) {
  for (int64_t columns : {1, 29, 1024, 5003}) {
    constexpr int64_t kRows = 9;
    constexpr float kCap = 5;
    Matrix z = random_values(kRows, columns, 1, -20, 20), l = z;
    backend->softcap(kCap, l);
    std::vector<uint16_t> targets = random_tokens(kRows, columns, 5);
    std::vector<int32_t> wide(targets.begin(), targets.end());
    DeviceArray<int32_t> tokens{std::span<const int32_t>(wide)};
    DeviceCopy gz(z), gdz = DeviceCopy::poisoned(kRows, columns), losses = DeviceCopy::poisoned(kRows, 1);
    launch_loss_backward(gz, kCap, CudaTargets::next_tokens(tokens.data()), gdz, losses.data(), nullptr);
    double expected = nll_backward(l, targets, kCap), found = 0;
    const Matrix of_rows = losses.download();
    for (float loss : of_rows.values()) found += static_cast<double>(loss);
    EXPECT_NEAR(found, expected, 1e-5 * std::max(1.0, expected)) << columns;
    expect_near(gdz.download(), l, kTolerance);
    launch_loss_backward(gz, kCap, CudaTargets::next_tokens(tokens.data()), gz, losses.data(), nullptr);  // in place
    expect_near(gz.download(), gdz.download(), 0);
  }
}

TEST_F(CudaFloatOpsTest, DivergenceFromATeacher) {
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
    launch_loss_backward(gz, kCap, CudaTargets::teacher(gt.data()), gdz, losses.data(), nullptr);
    expect_near(gdz.download(), expected, kTolerance);
    expect_near(losses.download(), expected_losses, kTolerance);
  }
}

TEST_F(CudaFloatOpsTest, ColumnDots) {
  CudaColumnDots dots;
  for (const Extent& e :
       {Extent{1, 1, 1}, Extent{3, 1, 33}, Extent{2, 255, 7}, Extent{2, 257, 40}, Extent{1, 700, 129}}) {
    SCOPED_TRACE(testing::Message() << e.sequences << " x " << e.positions << " x " << e.columns);
    Matrix a = random_values(e.rows(), e.columns, 1), b = random_values(e.rows(), e.columns, 2);
    DeviceCopy da(a), db(b);
    std::vector<double> sums(static_cast<size_t>(e.columns), 5.0), alone = sums;
    DeviceArray<double> together{std::span<const double>(sums)}, apart{std::span<const double>(sums)};
    dots.add(da, db, {e.sequences, e.positions}, together.data(), {}, nullptr);
    for (int64_t s = 0; s < e.sequences; ++s) {
      int64_t first = s * e.positions * e.columns;
      dots.add(ConstCudaView(da.data() + first, e.positions, e.columns),
               ConstCudaView(db.data() + first, e.positions, e.columns), {1, e.positions}, apart.data(), {}, nullptr);
    }
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    check_cuda(cudaMemcpy(sums.data(), together.data(), together.bytes(), cudaMemcpyDeviceToHost));
    check_cuda(cudaMemcpy(alone.data(), apart.data(), apart.bytes(), cudaMemcpyDeviceToHost));
    EXPECT_EQ(sums, alone);  // whatever the batch
    std::vector<double> expected = column_dots(a, b);
    for (size_t c = 0; c < sums.size(); ++c) EXPECT_NEAR(sums[c], expected[c] + 5, 1e-12) << c;
  }
}

TEST_F(CudaFloatOpsTest, ColumnDotsFindTheFirstTermThatIsNotFinite) {
  constexpr int64_t kSequences = 3, kPositions = 600, kColumns = 50;
  Matrix a = random_values(kSequences * kPositions, kColumns, 1);
  a(kPositions + 411, 40) = NAN;
  a(kPositions + 17, 41) = INFINITY;
  a(2 * kPositions, 0) = NAN;
  DeviceCopy da(a);
  std::vector<double> zeros(kColumns);
  std::vector<unsigned long long> none = {CudaBadTerm::kAbsent};
  DeviceArray<double> sums{std::span<const double>(zeros)};
  DeviceArray<unsigned long long> first{std::span<const unsigned long long>(none)};
  CudaColumnDots dots;
  dots.add(da, da, {kSequences, kPositions}, sums.data(), {first.data(), 10}, nullptr);
  check_cuda(cudaDeviceSynchronize());
  check_cuda(cudaMemcpy(none.data(), first.data(), first.bytes(), cudaMemcpyDeviceToHost));
  EXPECT_EQ(none[0], static_cast<unsigned long long>((11 * kColumns + 40) * kPositions + 411));
}

}  // namespace
}  // namespace thimble
