// numeric_policy.h: the numeric modes of a forward pass (--numerics), and what each rounds where. A mode is a policy
// that passes over a network follow, not another forward pass.
//
//   fp32          nothing is rounded
//   bf16, fp16    matrices and what every operation writes; arithmetic within an operation is fp32
//   sf16          Q1.15 at the boundaries below, bf16 in memory ("true forward": all scales 1)
//   sf16-legacy   the same without Q1.31, with logits times 24, attention's residual branch times 0.65, the MLP's 0.75
//   nvfp4         as bf16, but the matrices of linear layers and their inputs in NVFP4 (nvfp4.h), kept in bf16
// With "-q115" after either sf16 the weights too are clamped and rounded to Q1.15 (weight-constrained).
// Vectors (gains, scales, biases) are a thousandth of the weights and only enter arithmetic in fp32: but for the SF16
// modes, which round all there is, they stay as they are. Rounded to bf16 they cost up to 1e-4 bits per byte more
// (docs/measurements/2026-11-23-h200.md).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "runtime/ops/weights.h"
#include "runtime/tensor/product_arithmetic.h"
#include "runtime/tensor/rounding.h"

namespace thimble {

enum class Numerics { kFp32, kBf16, kFp16, kSf16, kSf16Q115, kSf16Legacy, kSf16LegacyQ115, kNvfp4 };
inline constexpr std::array kAllNumerics = {Numerics::kFp32,           Numerics::kBf16,     Numerics::kFp16,
                                            Numerics::kSf16,           Numerics::kSf16Q115, Numerics::kSf16Legacy,
                                            Numerics::kSf16LegacyQ115, Numerics::kNvfp4};
std::string_view numerics_name(Numerics numerics);

// Is it one of the modes in Q1.15?
bool is_sf16(Numerics numerics);

// Places where a forward pass writes.
enum class Boundary {
  kLinear,      // products with weights below the output head, their biases, and attention's product with the values
  kScores,      // attention's q k^T, before 1/sqrt(d)
  kSoftmax,     // attention's weights, before the product with the values
  kLogits,      // the output head's product, before the logits' scale
  kCapped,      // logits after softcap
  kNorm,        // norms, of whole rows and of heads
  kResidual,    // sums of the residual stream, with its mixes and skips
  kActivation,  // the MLP's nonlinearity
  kEmbedding,   // embeddings looked up, and their sums
};
constexpr size_t kBoundaries = 9;
std::string_view boundary_name(Boundary boundary);

struct NumericPolicy {
  std::array<Rounding, kBoundaries> roundings;  // by Boundary
  float logits_scale = 1;
  float attention_scale = 1, mlp_scale = 1;  // of the residual branches
  Rounding weights;                          // of matrices, on load
  Rounding vectors;                          // of gains, scales and biases, on load
  bool nvfp4 = false;                        // before `weights`: linear layers' matrices, and their inputs
  // Of products with matrices. In bf16 nothing is lost where factors are stored in it; a pass may also round nothing
  // but factors.
  ProductArithmetic products = ProductArithmetic::kFloat32;

  const Rounding& at(Boundary boundary) const { return roundings[static_cast<size_t>(boundary)]; }
  // Changes no value between operations.
  bool is_exact() const;
  bool operator==(const NumericPolicy&) const = default;
};

NumericPolicy numeric_policy(Numerics numerics);

// Of the products of passes that round nothing else, which only give statistics and gradients: bf16 in that mode alone.
ProductArithmetic gradient_arithmetic(Numerics numerics);
NumericPolicy gradient_policy(ProductArithmetic arithmetic);

// The weights as a model in this mode has them: matrices of linear layers in NVFP4 with one float32 scale each, unless
// they are already, then all rounded as the policy says. An Error (bad input) names a matrix that cannot be NVFP4, as
// it is not finite.
void round_weights(const NumericPolicy& policy, Weights& weights);

// Values of a matrix that is not in NVFP4 yet as a mode has them before it rounds; nothing where they stay as they are.
std::optional<Matrix> staged_matrix(const NumericPolicy& policy, const Network& network, MatrixId id,
                                    const StoredMatrixView& stored);

// A rounded copy; the same where the mode changes nothing.
std::shared_ptr<const Weights> rounded_weights(std::shared_ptr<const Weights> weights, const NumericPolicy& policy);

}  // namespace thimble
