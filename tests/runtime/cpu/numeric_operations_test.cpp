// numeric_operations_test.cpp: what of each operation a numeric policy rounds, at which boundary, and nothing else.
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "runtime/codes/nvfp4.h"
#include "runtime/cpu/cpu_rows.h"
#include "runtime/cpu/gemm.h"
#include "tests/runtime/cpu/small_network.h"

namespace thimble::numeric_operations_test {
namespace {

struct RoundedOperation {
  const char* name;
  Boundary boundary;  // of what the operation writes
  SmallNetwork::Write write;
};

const RoundedOperation kOperations[] = {
    {"gather", Boundary::kEmbedding, [](Ops&, const auto& in) { return in[0]; }},
    {"linear", Boundary::kLinear, [](Ops& ops, const auto& in) { return ops.linear(in[0], "square"); }},
    {"sum of embeddings", Boundary::kEmbedding,
     [](Ops& ops, const auto& in) { return ops.add(in[0], in[1], Sum::kEmbedding); }},
    {"attention's branch", Boundary::kResidual,
     [](Ops& ops, const auto& in) { return ops.add(in[0], in[1], Sum::kAttention, ops.vector("vector")); }},
    {"the MLP's branch", Boundary::kResidual,
     [](Ops& ops, const auto& in) { return ops.add(in[0], in[1], Sum::kMlp); }},
    {"rms_norm", Boundary::kNorm, [](Ops& ops, const auto& in) { return ops.rms_norm(in[0], {.epsilon = 1}); }},
    {"layer_norm", Boundary::kNorm,
     [](Ops& ops, const auto& in) { return ops.layer_norm(in[0], ops.vector("vector"), ops.vector("vector"), 1); }},
    {"heads", Boundary::kNorm,
     [](Ops& ops, const auto& in) { return ops.heads(in[0], {.head_dim = 4, .epsilon = 1}); }},
    {"attention", Boundary::kLinear,
     [](Ops& ops, const auto& in) {
       return ops.attention(in[0], in[1], in[0], {.heads = 2, .kv_heads = 2, .head_dim = 4});
     }},
    {"activate", Boundary::kActivation,
     [](Ops& ops, const auto& in) { return ops.activate(Activation::kGeluTanh, in[0]); }},
    {"gate", Boundary::kActivation, [](Ops& ops, const auto& in) { return ops.gate(Activation::kSilu, in[0], in[1]); }},
    {"mix", Boundary::kResidual,
     [](Ops& ops, const auto& in) { return ops.mix(in[0], ops.vector("vector"), in[1], ops.vector("vector")); }},
    {"skip", Boundary::kResidual,
     [](Ops& ops, const auto& in) { return ops.skip(in[0], in[1], ops.vector("vector"), ops.vector("vector")); }},
    {"smear", Boundary::kResidual, [](Ops& ops, const auto& in) { return ops.smear(in[0], ops.vector("vector")); }},
};

SmallNetwork network_of(const SmallNetwork::Write& write) {
  const Matrix square = random_matrix(8, 8, 3);
  return {{random_matrix(9, 8, 1), random_matrix(9, 8, 2)},
          8,
          {{"vector", {{8}, random_vector(8, 5, 0.1, 0.9)}},
           {"square", {{8, 8}, {square.values().begin(), square.values().end()}, Role::kLinear}}},
          write};
}

Matrix run(const Weights& weights, const NumericPolicy& policy) {
  CpuPass pass(weights, 9, policy);
  const ConstMatrixView rows = pass.run(row_batch({1, 9, 0}));
  return filled(rows.rows, rows.cols, [&](int64_t r, int64_t c) { return double{rows.row(r)[c]}; });
}

Matrix rounded(Matrix x, const Rounding& rounding) {
  round_rows(rounding, x);
  return x;
}

TEST(NumericOperations, WriteRoundedAtTheirBoundaryAlone) {
  const Rounding coarse{Format::kQ115, Format::kBf16};
  for (const RoundedOperation& operation : kOperations) {
    SCOPED_TRACE(operation.name);
    const Weights weights = weights_of(network_of(operation.write), Inputs::kOwn);
    const Matrix exact = run(weights, {});
    // Lookups round too, and attention inside; what operations write comes last.
    std::set<Boundary> others = {Boundary::kEmbedding};
    if (operation.boundary == Boundary::kLinear) others.insert({Boundary::kScores, Boundary::kSoftmax});
    for (size_t i = 0; i < kBoundaries; ++i) {
      const auto boundary = static_cast<Boundary>(i);
      SCOPED_TRACE(boundary_name(boundary));
      NumericPolicy policy;
      policy.roundings[i] = coarse;
      const Matrix found = run(weights, policy);
      if (boundary == operation.boundary) {
        EXPECT_FALSE(same_bits(found, exact));
        if (boundary != Boundary::kEmbedding) {
          EXPECT_TRUE(same_bits(found, rounded(exact, coarse)));
        }
        EXPECT_TRUE(same_bits(found, rounded(found, coarse)));
      } else if (!others.contains(boundary)) {
        EXPECT_TRUE(same_bits(found, exact));
      }
    }
  }
}

// Scores before the scale, and weights before they meet the values.
TEST(NumericOperations, AttentionRoundsScoresAndWeights) {
  const SmallNetwork::Write& write = kOperations[8].write;
  const Weights weights = weights_of(network_of(write), Inputs::kOwn);
  for (Boundary boundary : {Boundary::kScores, Boundary::kSoftmax}) {
    NumericPolicy policy;
    policy.roundings[static_cast<size_t>(boundary)] = {Format::kQ115, Format::kFp32};
    EXPECT_FALSE(same_bits(run(weights, policy), run(weights, {}))) << boundary_name(boundary);
  }
}

TEST(NumericOperations, ScalesAreOfTheirBranchAlone) {
  for (const RoundedOperation& operation : kOperations) {
    SCOPED_TRACE(operation.name);
    const SmallNetwork small = network_of(operation.write);
    const Weights weights = weights_of(small, Inputs::kOwn);
    const Matrix exact = run(weights, {});
    for (float NumericPolicy::*scale : {&NumericPolicy::attention_scale, &NumericPolicy::mlp_scale}) {
      const bool is_attention = scale == &NumericPolicy::attention_scale;
      const bool is_its_branch =
          std::string_view(operation.name) == (is_attention ? "attention's branch" : "the MLP's branch");
      NumericPolicy policy;
      policy.*scale = 0.5f;
      const Matrix found = run(weights, policy);
      if (!is_its_branch) {
        EXPECT_TRUE(same_bits(found, exact));
        continue;
      }
      const Matrix& x = small.inputs[0];
      expect_close(
          found, [&](int64_t r, int64_t c) { return (double{x(r, c)} + double{exact(r, c)}) / 2; },
          [](int64_t, int64_t) { return 0x1p-22; });
    }
  }
}

// logits = round(cap(scale * round(product))).
TEST(NumericOperations, LogitsRoundScaleAndCapInThisOrder) {
  Ops ops({{"rows", {5, 5}, Role::kTable}, {"head", {7, 5}, Role::kHead}});
  const Value rows = ops.gather("rows");
  auto network = std::make_shared<const Network>(std::move(ops).head(rows, "head", 3));
  const Weights weights = bind_weights(network, {{"rows", random_vector(25, 1)}, {"head", random_vector(35, 2)}});
  auto logits_of = [&](const NumericPolicy& policy, Matrix* product) {
    CpuPass pass(weights, 5, policy);
    Matrix logits(5, 7);
    pass.logits(pass.run(row_batch({1, 5, 0})), logits, product);
    return logits;
  };
  NumericPolicy policy;
  const Rounding product_rounding{Format::kQ115, Format::kFp32}, capped_rounding{Format::kFp32, Format::kBf16};
  policy.roundings[static_cast<size_t>(Boundary::kLogits)] = product_rounding;
  policy.roundings[static_cast<size_t>(Boundary::kCapped)] = capped_rounding;
  policy.logits_scale = 24;
  Matrix exact_product(5, 7), product(5, 7);
  logits_of({}, &exact_product);
  const Matrix found = logits_of(policy, &product);
  const Matrix expected = rounded(exact_product, product_rounding);
  for (int64_t r = 0; r < 5; ++r)
    for (int64_t c = 0; c < 7; ++c) {
      EXPECT_EQ(product(r, c), 24 * expected(r, c));
      EXPECT_NEAR(found(r, c), 3 * std::tanh(double{product(r, c)} / 3), 3 * 0x1p-8);
    }
  EXPECT_TRUE(same_bits(found, rounded(found, capped_rounding)));
}

// Inputs of linear layers in NVFP4, row by row; nothing else.
TEST(NumericOperations, Nvfp4StagesTheInputsOfLinearLayers) {
  NumericPolicy policy;
  policy.nvfp4 = true;
  for (const RoundedOperation& operation : kOperations) {
    SCOPED_TRACE(operation.name);
    const SmallNetwork small = network_of(operation.write);
    const Weights weights = weights_of(small, Inputs::kOwn);
    const Matrix found = run(weights, policy);
    if (std::string_view(operation.name) != "linear") {
      EXPECT_TRUE(same_bits(found, run(weights, {})));
      continue;
    }
    Matrix staged(9, 8), expected(9, 8);
    stage_rows_nvfp4(small.inputs[0], {}, staged);
    multiply_nt(staged, weights.matrix(weights.network->id_of("square")), expected);
    EXPECT_TRUE(same_bits(found, expected));
  }
}

// A row's scale is its own, a block's of sixteen too; what remains is within half a step of the grid.
TEST(NumericOperations, RowsInNvfp4AreNear) {
  const Matrix x = filled(3, 37, [](int64_t r, int64_t c) {
    return std::ldexp(std::sin(static_cast<double>(7 * r + c + 1)), static_cast<int>(10 * r));
  });
  Matrix staged(3, 37);
  stage_rows_nvfp4(x, {}, staged);
  for (int64_t r = 0; r < 3; ++r)
    for (int64_t first = 0; first < 37; first += kNvfp4Block) {
      float largest = 0;
      for (int64_t c = first; c < std::min<int64_t>(first + kNvfp4Block, 37); ++c)
        largest = std::max(largest, std::abs(x(r, c)));
      // Between 4 and 6 a step is 2 of 6; the scale itself is good to 1 of 16.
      for (int64_t c = first; c < std::min<int64_t>(first + kNvfp4Block, 37); ++c)
        EXPECT_NEAR(staged(r, c), x(r, c), (1.0 / 6 + 1.0 / 16) * largest);
    }
}

}  // namespace
}  // namespace thimble::numeric_operations_test
