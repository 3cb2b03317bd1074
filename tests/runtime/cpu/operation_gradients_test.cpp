// operation_gradients_test.cpp: the transpose of every operation, and gradients of its matrix and vectors, against
// central differences of a plain float64 pass, on awkward widths. Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "runtime/base/random.h"
#include "runtime/ops/observers.h"
#include "tests/runtime/cpu/gradient_check.h"
#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/ops/sample_networks.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::operation_gradients_test {
namespace {

constexpr float kRmsEpsilon = 1.1920929e-7f;

constexpr Extent kGradientExtents[] = {{1, 1}, {1, 7}, {3, 17}, {5, 64}, {300, 65}};

SmallTensor vector_of(int64_t count, uint64_t seed, double low, double high) {
  return {{count}, random_vector(count, seed, low, high)};
}

// The operation reads its inputs alone, or others read them too, so that its gradients are added to theirs.
void expect_gradients_of(const SmallNetwork& small, const BatchShape& batch, double terms) {
  SmallNetwork again = small;
  again.write = [&](Ops& ops, const std::vector<Value>& in) {
    Value y = small.write(ops, in);
    for (size_t i = 0; i < in.size(); ++i)
      if (small.inputs[i].cols() == small.width) y = ops.add(y, in[i], Sum::kMlp);
    return y;
  };
  for (Inputs how : kAllInputs)
    for (const SmallNetwork* network : {&small, static_cast<const SmallNetwork*>(&again)}) {
      // Of many rows, which take long, two of the four.
      if (batch.rows() > 100 && (how == Inputs::kViews) != (network == &again)) continue;
      SCOPED_TRACE(::testing::Message() << batch.rows() << " rows, " << (how == Inputs::kViews ? "views" : "own memory")
                                        << (network == &again ? ", read twice" : ""));
      expect_gradients(weights_of(*network, how, /*has_head=*/true), row_batch(batch), terms);
    }
}

// Of operations on rows, over all extents.
void expect_row_gradients(size_t inputs, const std::function<std::map<std::string, SmallTensor>(int64_t)>& tensors,
                          const SmallNetwork::Write& write, const std::function<double(int64_t)>& terms) {
  for (const Extent& e : kGradientExtents) {
    SmallNetwork small{{}, e.cols, tensors(e.cols), write};
    for (uint64_t i = 0; i < inputs; ++i) small.inputs.push_back(random_matrix(e.rows, e.cols, 1 + i));
    expect_gradients_of(small, {1, e.rows, 0}, terms(e.cols) + static_cast<double>(e.rows));
  }
}

std::map<std::string, SmallTensor> no_tensors(int64_t) { return {}; }
double few(int64_t) { return 4; }

TEST(GradientOps, Linear) {
  for (bool has_bias : {false, true}) {
    const Matrix w = random_matrix(13, 37, 2);
    const SmallNetwork small{
        {random_matrix(9, 37, 1)},
        13,
        {{"w", {{13, 37}, {w.values().begin(), w.values().end()}, Role::kLinear}}, {"bias", vector_of(13, 3, -1, 1)}},
        [=](Ops& ops, const auto& in) { return ops.linear(in[0], "w", has_bias ? ops.vector("bias") : Vector{}); }};
    expect_gradients_of(small, {1, 9, 0}, 39);
  }
}

// One product after another adds to the gradient of what all of them read.
TEST(GradientOps, LinearsOfOneInput) {
  const Matrix w = random_matrix(13, 37, 2), other = random_matrix(13, 37, 5);
  const SmallNetwork small{{random_matrix(9, 37, 1)},
                           13,
                           {{"w", {{13, 37}, {w.values().begin(), w.values().end()}, Role::kLinear}},
                            {"other", {{13, 37}, {other.values().begin(), other.values().end()}, Role::kLinear}}},
                           [](Ops& ops, const auto& in) {
                             const Value sum = ops.add(ops.linear(in[0], "w"), ops.linear(in[0], "other"), Sum::kMlp);
                             return ops.add(sum, ops.linear(in[0], "w"), Sum::kMlp);
                           }};
  expect_gradients_of(small, {1, 9, 0}, 3 * 39);
}

TEST(GradientOps, Add) {
  for (const char* scale : {"vector", "scalar", ""})
    expect_row_gradients(
        2,
        [](int64_t cols) {
          return std::map<std::string, SmallTensor>{{"vector", vector_of(cols, 3, -2, 2)},
                                                    {"scalar", vector_of(1, 4, -2, 2)}};
        },
        [=](Ops& ops, const auto& in) {
          return ops.add(in[0], in[1], Sum::kMlp, *scale ? ops.vector(scale) : Vector{});
        },
        [](int64_t cols) { return static_cast<double>(4 + cols); });
}

TEST(GradientOps, RmsNorm) {
  for (bool has_gain : {false, true})
    expect_row_gradients(
        1,
        [](int64_t cols) {
          return std::map<std::string, SmallTensor>{{"gain", vector_of(cols, 3, -1, 1)}};
        },
        [=](Ops& ops, const auto& in) {
          return ops.rms_norm(
              in[0], {.epsilon = kRmsEpsilon, .factor = 0.7f, .gain = has_gain ? ops.vector("gain") : Vector{}});
        },
        [](int64_t cols) { return static_cast<double>(4 * cols); });
}

TEST(GradientOps, LayerNorm) {
  expect_row_gradients(
      1,
      [](int64_t cols) {
        return std::map<std::string, SmallTensor>{{"weight", vector_of(cols, 3, -1, 1)},
                                                  {"bias", vector_of(cols, 4, -1, 1)}};
      },
      [](Ops& ops, const auto& in) { return ops.layer_norm(in[0], ops.vector("weight"), ops.vector("bias"), 1e-3f); },
      [](int64_t cols) { return static_cast<double>(4 * cols); });
}

// Heads of width 6, of which some columns rotate.
TEST(GradientOps, Heads) {
  for (int64_t rope_dims : {0, 4, 6})
    for (bool has_norm : {false, true})
      for (bool has_norm_gain : {false, true})
        for (bool has_head_gain : {false, true}) {
          if (has_norm_gain && !has_norm) continue;
          SCOPED_TRACE(::testing::Message() << rope_dims << has_norm << has_norm_gain << has_head_gain);
          SmallNetwork small{{random_matrix(9, 18, 1)}, 18, {{"norm_gain", vector_of(6, 3, 0.5, 1.5)}}, {}};
          small.tensors["head_gain"] = {{3}, {1.5f, -0.3f, 0}};
          small.write = [=](Ops& ops, const auto& in) {
            op::Heads options{.head_dim = 6};
            if (has_norm) options.epsilon = kRmsEpsilon;
            if (has_norm_gain) options.norm_gain = ops.vector("norm_gain");
            if (has_head_gain) options.head_gain = ops.vector("head_gain");
            if (rope_dims > 0)
              options.rotary = ops.rotary(
                  {rope_dims, [=](int64_t) {
                     std::vector<double> all;
                     for (int64_t k = 0; k < rope_dims / 2; ++k)
                       all.push_back(std::pow(100, -2.0 * static_cast<double>(k) / static_cast<double>(rope_dims)));
                     return all;
                   }});
            return ops.heads(in[0], options);
          };
          expect_gradients_of(small, {1, 9, 0}, 40);
          expect_gradients_of(small, {3, 3, 0}, 40);
        }
}

TEST(GradientOps, Activations) {
  for (Activation activation : {Activation::kLeakyReluSquared, Activation::kGeluTanh, Activation::kSilu})
    expect_row_gradients(
        1, no_tensors, [=](Ops& ops, const auto& in) { return ops.activate(activation, in[0]); }, few);
}

TEST(GradientOps, Gates) {
  for (Activation activation : {Activation::kLeakyReluSquared, Activation::kGeluTanh, Activation::kSilu})
    expect_row_gradients(
        2, no_tensors, [=](Ops& ops, const auto& in) { return ops.gate(activation, in[0], in[1]); }, few);
}

TEST(GradientOps, Mix) {
  expect_row_gradients(
      2,
      [](int64_t cols) {
        return std::map<std::string, SmallTensor>{{"first", vector_of(cols, 3, -2, 2)},
                                                  {"second", vector_of(cols, 4, -2, 2)}};
      },
      [](Ops& ops, const auto& in) { return ops.mix(in[0], ops.vector("first"), in[1], ops.vector("second")); }, few);
}

TEST(GradientOps, Skip) {
  for (bool is_gated : {false, true})
    expect_row_gradients(
        2,
        [](int64_t cols) {
          return std::map<std::string, SmallTensor>{{"weight", vector_of(cols, 3, -2, 2)},
                                                    {"gate", vector_of(cols, 4, 0, 1)}};
        },
        [=](Ops& ops, const auto& in) {
          return ops.skip(in[0], in[1], ops.vector("weight"), is_gated ? ops.vector("gate") : Vector{});
        },
        few);
}

TEST(GradientOps, Smear) {
  auto gate = [](int64_t cols) { return std::map<std::string, SmallTensor>{{"gate", vector_of(cols, 3, 0, 1)}}; };
  auto smear = [](Ops& ops, const auto& in) { return ops.smear(in[0], ops.vector("gate")); };
  expect_row_gradients(1, gate, smear, few);
  expect_gradients_of({{random_matrix(12, 7, 1)}, 7, gate(7), smear}, {3, 4, 0}, 4);
}

// Columns that no view covers have a gradient of zero; what several views cover, or a view and all of it, adds up.
TEST(GradientOps, Columns) {
  const std::pair<const char*, SmallNetwork::Write> writes[] = {
      {"apart",
       [](Ops& ops, const auto& in) { return ops.add(ops.columns(in[0], 1, 4), ops.columns(in[0], 6, 4), Sum::kMlp); }},
      {"overlapping",
       [](Ops& ops, const auto& in) {
         return ops.gate(Activation::kSilu, ops.columns(in[0], 1, 4), ops.columns(in[0], 3, 4));
       }},
      {"the same twice",
       [](Ops& ops, const auto& in) {
         return ops.gate(Activation::kSilu, ops.columns(in[0], 2, 4), ops.columns(in[0], 2, 4));
       }},
      {"one read twice",
       [](Ops& ops, const auto& in) {
         const Value view = ops.columns(in[0], 2, 4);
         return ops.add(ops.activate(Activation::kSilu, view), view, Sum::kMlp);
       }},
      {"views of views",
       [](Ops& ops, const auto& in) {
         const Value view = ops.columns(in[0], 1, 9);
         return ops.gate(Activation::kSilu, ops.columns(view, 0, 4), ops.columns(view, 4, 4));
       }},
      {"all of it afterwards",
       [](Ops& ops, const auto& in) {
         const Value some = ops.activate(Activation::kSilu, ops.columns(in[0], 1, 4));
         return ops.add(some, ops.columns(ops.activate(Activation::kSilu, in[0]), 5, 4), Sum::kMlp);
       }},
      {"all of it before",
       [](Ops& ops, const auto& in) {
         const Value all = ops.activate(Activation::kSilu, in[0]);
         return ops.add(ops.columns(all, 5, 4), ops.activate(Activation::kSilu, ops.columns(in[0], 1, 4)), Sum::kMlp);
       }},
  };
  for (const auto& [name, write] : writes) {
    SCOPED_TRACE(name);
    expect_gradients_of({{random_matrix(5, 11, 1)}, 4, {}, write}, {1, 5, 0}, 8);
  }
}

struct InputGradient final : GradientObserver {
  void on_output_gradient(const std::string&, int64_t, ConstMatrixView, ConstMatrixView) override {}
  void on_lookup_gradient(const std::string&, std::span<const int32_t>, ConstMatrixView gradient) override {
    found = filled(gradient.rows, gradient.cols, [&](int64_t r, int64_t c) { return double{gradient.row(r)[c]}; });
  }
  Matrix found;
};

Matrix input_gradient(const SmallNetwork& small, const Matrix& dy) {
  const Weights weights = weights_of(small, Inputs::kOwn, /*has_head=*/true);
  CpuPass pass(weights, dy.rows(), {}, {.has_backward = true});
  pass.run(row_batch({1, dy.rows(), 0}));
  InputGradient gradient;
  pass.backward_head(0, dy, {}, gradient);
  pass.backward(gradient, nullptr);
  return gradient.found;
}

TEST(GradientOps, NormsOfZerosAreFinite) {
  const Matrix dy = random_matrix(1, 5, 1);
  const Matrix dx = input_gradient(
      {{Matrix(1, 5)}, 5, {}, [](Ops& ops, const auto& in) { return ops.rms_norm(in[0], {.epsilon = kRmsEpsilon}); }},
      dy);
  const double scale = 1 / std::sqrt(double{kRmsEpsilon});
  expect_close(
      dx, [&](int64_t r, int64_t c) { return scale * double{dy(r, c)}; },
      [&](int64_t, int64_t) { return 4 * scale * kFloatRounding; });

  const SmallTensor ones{{5}, std::vector<float>(5, 1.0f)};
  const Matrix layer_dx = input_gradient(
      {{Matrix(1, 5)},
       5,
       {{"ones", ones}},
       [](Ops& ops, const auto& in) { return ops.layer_norm(in[0], ops.vector("ones"), ops.vector("ones"), 1e-5f); }},
      dy);
  double mean = 0;
  for (int64_t c = 0; c < 5; ++c) mean += double{dy(0, c)} / 5;
  expect_close(
      layer_dx, [&](int64_t r, int64_t c) { return (double{dy(r, c)} - mean) / std::sqrt(double{1e-5f}); },
      [&](int64_t, int64_t) { return 16 * kFloatRounding / std::sqrt(1e-5); });
}

// Straight from the slope, for values on both sides of 0 and 0 itself.
TEST(GradientOps, LeakyReluSquared) {
  for (const Extent& e : kGradientExtents) {
    const Matrix dy = random_matrix(e.rows, e.cols, 2);
    Matrix z = random_matrix(e.rows, e.cols, 1, 2);
    z(0, 0) = 0;
    const Matrix dz = input_gradient(
        {{z}, e.cols, {}, [](Ops& ops, const auto& in) { return ops.activate(Activation::kLeakyReluSquared, in[0]); }},
        dy);
    expect_close(
        dz,
        [&](int64_t r, int64_t c) {
          const double v = double{z(r, c)};
          return (v > 0 ? 2 * v : v / 2) * double{dy(r, c)};
        },
        [](int64_t, int64_t) { return 4 * kFloatRounding * 4; });
  }
}

TEST(GradientOps, NetworkOfEveryOperation) {
  const auto weights = random_weights(network_of_every_operation(), 2);
  const TokenBatch batch = window_batch(std::vector<Token>{3, 12, 0, 3, 3, 7, 1, 12, 5, 9, 3});
  expect_gradients(*weights, batch, 400);
}

TEST(GradientOps, RandomNetworks) {
  const TokenBatch batch = window_batch(std::vector<Token>{3, 12, 0, 3, 7});
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    expect_gradients(*random_weights(random_network(seed), seed), batch, 4000);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace thimble::operation_gradients_test
