// mixing_operations_test.cpp: operations that mix a row with others of CpuPass against plain loops in float64: mixes,
// skips, smears, and all of them on the last rows of a window alone. Run once per instruction set (see CMakeLists.txt).
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/cpu/small_network.h"
#include "tests/runtime/ops/naive_network.h"
#include "tests/runtime/ops/sample_networks.h"
#include "tests/runtime/tensor/guarded_matrix.h"

namespace thimble::mixing_operations_test {
namespace {

constexpr double kU = kFloatRounding;

SmallTensor vector_of(const std::vector<float>& values) { return {{static_cast<int64_t>(values.size())}, values}; }

TEST(CpuOperations, MixWeighsByColumns) {
  for (const Extent& e : kExtents) {
    const Matrix x = random_matrix(e.rows, e.cols, 1), a = random_matrix(e.rows, e.cols, 2);
    const std::vector<float> first = random_vector(e.cols, 3), second = random_vector(e.cols, 4);
    const SmallNetwork small{
        {x, a}, e.cols, {{"first", vector_of(first)}, {"second", vector_of(second)}}, [](Ops& ops, const auto& in) {
          return ops.mix(in[0], ops.vector("first"), in[1], ops.vector("second"));
        }};
    auto one = [&](int64_t r, int64_t c) { return double{first[static_cast<size_t>(c)]} * double{x(r, c)}; };
    auto other = [&](int64_t r, int64_t c) { return double{second[static_cast<size_t>(c)]} * double{a(r, c)}; };
    for (Inputs how : kAllInputs)
      expect_close(
          run_small(small, how), [&](int64_t r, int64_t c) { return one(r, c) + other(r, c); },
          [&](int64_t r, int64_t c) { return 3 * kU * (std::abs(one(r, c)) + std::abs(other(r, c))); });
  }
}

TEST(CpuOperations, SkipsWithAndWithoutAGate) {
  for (const Extent& e : kExtents)
    for (bool is_gated : {false, true}) {
      const Matrix x = random_matrix(e.rows, e.cols, 2), a = random_matrix(e.rows, e.cols, 1);
      const std::vector<float> weight = random_vector(e.cols, 3), gate = random_vector(e.cols, 4, 0, 1);
      const SmallNetwork small{{x, a},
                               e.cols,
                               {{"weight", vector_of(weight)}, {"gate", vector_of(gate)}},
                               [is_gated](Ops& ops, const auto& in) {
                                 return ops.skip(in[0], in[1], ops.vector("weight"),
                                                 is_gated ? ops.vector("gate") : Vector{});
                               }};
      for (Inputs how : kAllInputs)
        expect_close(
            run_small(small, how),
            [&](int64_t r, int64_t c) {
              const auto i = static_cast<size_t>(c);
              const double weighted = double{weight[i]} * double{a(r, c)}, g = double{gate[i]};
              return is_gated ? (1 - g) * weighted + g * double{x(r, c)} : double{x(r, c)} + weighted;
            },
            [](int64_t, int64_t) { return 8 * kU; });
    }
}

SmallNetwork smear_of(const Matrix& x, const std::vector<float>& gate) {
  return {{x}, x.cols(), {{"gate", vector_of(gate)}}, [](Ops& ops, const auto& in) {
            return ops.smear(in[0], ops.vector("gate"));
          }};
}

// With a state, which holds the position before the batch's first and afterwards its last.
TEST(CpuOperations, SmearMixesWithThePositionBefore) {
  const BatchShape batches[] = {{1, 1, 0}, {1, 6, 0}, {3, 1, 4}, {4, 5, 2}};
  for (const BatchShape& batch : batches)
    for (Inputs how : kAllInputs) {
      const int64_t width = 19;
      const Matrix x = random_matrix(batch.rows(), width, 1), before = random_matrix(batch.sequences, width, 2);
      const std::vector<float> gate = random_vector(width, 3, 0, 1);
      const Weights weights = weights_of(smear_of(x, gate), how);
      CpuCache cache(*weights.network, batch.sequences, 7);
      cache.state(0) = before;
      auto previous = [&](int64_t r, int64_t c) {
        return double{r % batch.positions == 0 ? before(r / batch.positions, c) : x(r - 1, c)};
      };
      expect_close(
          run_small(batch, weights, cache),
          [&](int64_t r, int64_t c) {
            const double g = double{gate[static_cast<size_t>(c)]};
            return (1 - g) * double{x(r, c)} + g * previous(r, c);
          },
          [](int64_t, int64_t) { return 6 * kU; });
      for (int64_t s = 0; s < batch.sequences; ++s)
        for (int64_t c = 0; c < width; ++c) EXPECT_EQ(cache.state(0)(s, c), x((s + 1) * batch.positions - 1, c));
    }
}

TEST(CpuOperations, SmearOfAWindowBeginsWithNothing) {
  const Matrix x = random_matrix(12, 5, 1);
  const std::vector<float> gate = random_vector(5, 3, 0, 1);
  for (Inputs how : kAllInputs)
    for (const BatchShape& batch : {BatchShape{1, 12, 0}, {3, 4, 0}, {12, 1, 0}})
      expect_close(
          run_small(smear_of(x, gate), how, batch),
          [&](int64_t r, int64_t c) {
            const double g = double{gate[static_cast<size_t>(c)]};
            return (1 - g) * double{x(r, c)} + (r % batch.positions == 0 ? 0 : g * double{x(r - 1, c)});
          },
          [](int64_t, int64_t) { return 6 * kU; });
}

// Whatever comes last, the rows before the first needed one may stay unknown.
TEST(CpuOperations, TheLastRowsAloneAreTheSame) {
  const std::pair<const char*, SmallNetwork::Write> writes[] = {
      {"gather", [](Ops&, const auto& in) { return in[0]; }},
      {"linear", [](Ops& ops, const auto& in) { return ops.linear(in[0], "square", ops.vector("vector")); }},
      {"add", [](Ops& ops, const auto& in) { return ops.add(in[0], in[1], Sum::kMlp); }},
      {"rms_norm", [](Ops& ops, const auto& in) { return ops.rms_norm(in[0], {.epsilon = 1e-5f}); }},
      {"layer_norm",
       [](Ops& ops, const auto& in) {
         return ops.layer_norm(in[0], ops.vector("vector"), ops.vector("vector"), 1e-5f);
       }},
      {"heads",
       [](Ops& ops, const auto& in) {
         const RotaryId rotary = ops.rotary({4, [](int64_t) { return std::vector<double>{1, 0.1}; }});
         return ops.heads(in[0], {.head_dim = 4, .epsilon = 1e-5f, .rotary = rotary});
       }},
      {"attention",
       [](Ops& ops, const auto& in) {
         return ops.attention(in[0], in[1], in[0], {.heads = 2, .kv_heads = 2, .head_dim = 4, .exclusive = true});
       }},
      {"activate", [](Ops& ops, const auto& in) { return ops.activate(Activation::kSilu, in[0]); }},
      {"gate", [](Ops& ops, const auto& in) { return ops.gate(Activation::kSilu, in[0], in[1]); }},
      {"mix",
       [](Ops& ops, const auto& in) { return ops.mix(in[0], ops.vector("vector"), in[1], ops.vector("vector")); }},
      {"skip", [](Ops& ops, const auto& in) { return ops.skip(in[0], in[1], ops.vector("vector")); }},
      {"smear", [](Ops& ops, const auto& in) { return ops.smear(in[0], ops.vector("vector")); }},
  };
  const Matrix square = random_matrix(8, 8, 3);
  for (const auto& [name, write] : writes) {
    SCOPED_TRACE(name);
    const SmallNetwork small{{random_matrix(9, 8, 1), random_matrix(9, 8, 2)},
                             8,
                             {{"vector", vector_of(random_vector(8, 5, 0.1, 0.9))},
                              {"square", {{8, 8}, {square.values().begin(), square.values().end()}, Role::kLinear}}},
                             write};
    for (Inputs how : kAllInputs) {
      const Matrix whole = run_small(small, how);
      const Weights weights = weights_of(small, how);
      for (int64_t first : {1, 4, 8}) {
        CpuPass pass(weights, 9);
        const ConstMatrixView rows = pass.run(row_batch({1, 9, 0}), nullptr, first);
        ASSERT_EQ(rows.rows, 9 - first);
        expect_close(
            rows, [&](int64_t r, int64_t c) { return double{whole(first + r, c)}; },
            [](int64_t, int64_t) { return 16 * kU; });
      }
    }
  }
}

}  // namespace
}  // namespace thimble::mixing_operations_test
