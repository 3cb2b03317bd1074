// moe_layer.h: a mixture-of-experts layer in NVFP4, stage by stage, keeping what every stage gives.
//
//   router     softmax of the top k of x Wr^T, over these k
//   x-scales   x staged to NVFP4: scales, then        x-codes   codes
//   l1         per expert: staged x times (gate | up)^T
//   activation SiLU(gate) * up
//   h-scales   staged likewise, then                  h-codes
//   l2         per expert: staged h times down^T
//   scatter    y of a token = sum over its experts of routing weight * l2, experts ascending
//
// T = tokens, D = model width, F = hidden width, E = experts, S = T * top_k routed rows, by expert and then token
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/codes/nvfp4_matrix.h"

namespace thimble {

enum class MoeStage { kRouter, kXScales, kXCodes, kL1, kActivation, kHScales, kHCodes, kL2, kScatter };
constexpr std::array<std::string_view, 9> kMoeStages = {"router",   "x-scales", "x-codes", "l1",     "activation",
                                                        "h-scales", "h-codes",  "l2",      "scatter"};
constexpr std::string_view moe_stage_name(MoeStage stage) { return kMoeStages[static_cast<size_t>(stage)]; }

struct MoeLayer {
  int64_t model_dim = 0, hidden_dim = 0, experts = 0, top_k = 0;
  Matrix router;                 // (E, D)
  std::vector<Nvfp4Codes> up;    // E of (2 F, D): the F rows of the gate, then those of up
  std::vector<Nvfp4Codes> down;  // E of (D, F)
};

struct MoeRoute {
  int64_t expert = 0, token = 0;
};

struct MoeTrace {
  Matrix routing;                // (T, E) 0 where an expert was not chosen
  std::vector<MoeRoute> routes;  // (S) ascending by expert, then token
  Nvfp4Codes x;                  // (T, D)
  Matrix l1;                     // (S, 2 F)
  Matrix activated;              // (S, F)
  Nvfp4Codes hidden;             // (S, F)
  Matrix l2;                     // (S, D)
  Matrix output;                 // (T, D)
};

// C (M, N) = A (M, K) B^T: multiply_nvfp4() or a device's.
using MultiplyNvfp4 = std::function<Matrix(const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k)>;

// x (T, D), finite. `fault`: one element of this stage's result is made wrong, by 1% of the stage's largest magnitude
// or a few codes, and the stages after it go on from there.
MoeTrace run_moe(const MoeLayer& layer, ConstMatrixView x, const MultiplyNvfp4& multiply,
                 std::optional<MoeStage> fault = std::nullopt);

// Normally distributed weights, 1 / sqrt(inputs) wide, staged to NVFP4. A function of its arguments alone.
MoeLayer random_moe_layer(int64_t model_dim, int64_t hidden_dim, int64_t experts, int64_t top_k, uint64_t seed);

// (rows, cols) normally distributed.
Matrix random_normal_matrix(int64_t rows, int64_t cols, double deviation, uint64_t seed);

}  // namespace thimble
