// numeric_policy.cpp: the table of modes, and weights rounded on load.
#include "runtime/ops/numeric_policy.h"

#include <algorithm>
#include <cmath>

#include "runtime/base/error.h"
#include "runtime/base/parallel.h"
#include "runtime/codes/nvfp4_matrix.h"

namespace thimble {
namespace {

constexpr float kLegacyLogitsScale = 24;
constexpr float kLegacyAttentionScale = 0.65f, kLegacyMlpScale = 0.75f;

NumericPolicy in_storage(Format format) {
  NumericPolicy policy;
  policy.roundings.fill({Format::kFp32, format});
  policy.weights.storage = format;
  return policy;
}

// Values lie in bf16, products sum in fp32.
NumericPolicy sf16_policy(Format product) {
  NumericPolicy policy = in_storage(Format::kBf16);
  for (Rounding& rounding : policy.roundings) rounding.value = Format::kQ115;
  for (Boundary boundary : {Boundary::kLinear, Boundary::kScores, Boundary::kSoftmax, Boundary::kLogits})
    policy.roundings[static_cast<size_t>(boundary)].value = product;
  policy.roundings[static_cast<size_t>(Boundary::kSoftmax)].value = Format::kQ115;
  // The loss reads logits in fp32: softcap is part of it.
  policy.roundings[static_cast<size_t>(Boundary::kCapped)] = {};
  policy.vectors = policy.weights;
  return policy;
}

void round_values(const Rounding& rounding, std::span<float> values) {
  if (rounding.is_exact()) return;
  parallel_chunks(static_cast<int64_t>(values.size()), 65536, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) values[static_cast<size_t>(i)] = rounding(values[static_cast<size_t>(i)]);
  });
}

// Are values that are stored so already what rounding makes of them?
bool is_rounded(const Rounding& rounding, DType stored) {
  return (stored == DType::kBF16 && rounding == Rounding{Format::kFp32, Format::kBf16}) ||
         (stored == DType::kF16 && rounding == Rounding{Format::kFp32, Format::kFp16});
}

}  // namespace

std::string_view numerics_name(Numerics numerics) {
  constexpr std::string_view kNames[] = {"fp32", "bf16", "fp16", "sf16", "sf16-q115", "sf16-legacy", "sf16-legacy-q115",
                                         "nvfp4"};
  static_assert(std::size(kNames) == kAllNumerics.size());
  return kNames[static_cast<size_t>(numerics)];
}

bool is_sf16(Numerics numerics) { return numerics_name(numerics).starts_with("sf16"); }

std::string_view boundary_name(Boundary boundary) {
  constexpr std::string_view kNames[] = {"linear", "scores",   "softmax",    "logits",   "capped logits",
                                         "norm",   "residual", "activation", "embedding"};
  static_assert(std::size(kNames) == kBoundaries);
  return kNames[static_cast<size_t>(boundary)];
}

bool NumericPolicy::is_exact() const { return *this == gradient_policy(products); }

NumericPolicy numeric_policy(Numerics numerics) {
  NumericPolicy policy;
  switch (numerics) {
    case Numerics::kFp32: break;
    case Numerics::kBf16:
      policy = in_storage(Format::kBf16);
      policy.products = ProductArithmetic::kBf16;
      break;
    case Numerics::kFp16: return in_storage(Format::kFp16);
    case Numerics::kSf16:
    case Numerics::kSf16Q115: policy = sf16_policy(Format::kQ131Q115); break;
    case Numerics::kSf16Legacy:
    case Numerics::kSf16LegacyQ115:
      policy = sf16_policy(Format::kQ115);
      policy.logits_scale = kLegacyLogitsScale;
      policy.attention_scale = kLegacyAttentionScale;
      policy.mlp_scale = kLegacyMlpScale;
      break;
    case Numerics::kNvfp4:
      policy = in_storage(Format::kBf16);
      policy.products = ProductArithmetic::kBf16;
      policy.nvfp4 = true;
      break;
  }
  if (numerics == Numerics::kSf16Q115 || numerics == Numerics::kSf16LegacyQ115)
    policy.weights.value = policy.vectors.value = Format::kQ115;
  return policy;
}

ProductArithmetic gradient_arithmetic(Numerics numerics) {
  return numerics == Numerics::kBf16 ? ProductArithmetic::kBf16 : ProductArithmetic::kFloat32;
}

NumericPolicy gradient_policy(ProductArithmetic arithmetic) {
  NumericPolicy policy;
  policy.products = arithmetic;
  return policy;
}

std::optional<Matrix> staged_matrix(const NumericPolicy& policy, const Network& network, MatrixId id,
                                    const StoredMatrixView& stored) {
  const std::vector<MatrixId> linear = network.linear_matrices();
  if (!policy.nvfp4 || std::ranges::find(linear, id) == linear.end()) return std::nullopt;
  Matrix values(stored.rows, stored.cols);
  stored.read(values);
  if (!std::ranges::all_of(values.values(), [](float value) { return std::isfinite(value); }))
    throw Error(ExitCode::kBadInput,
                "tensor '" + network.matrix(id).name + "' holds a value that is not finite, which NVFP4 has not");
  Matrix staged(values.rows(), values.cols());
  const float tensor_scale = nvfp4_tensor_scale(values);
  for_each_row(values.rows(), values.cols(),
               [&](int64_t r) { nvfp4_values(values.row(r), values.cols(), tensor_scale, staged.row(r)); });
  return staged;
}

void round_weights(const NumericPolicy& policy, Weights& weights) {
  for (MatrixId id = 0; id < static_cast<MatrixId>(weights.matrices.size()); ++id) {
    StoredMatrix& matrix = weights.matrices[static_cast<size_t>(id)];
    std::optional<Matrix> staged;
    if (!weights.is_in_nvfp4(id)) staged = staged_matrix(policy, *weights.network, id, matrix);
    if (staged) weights.in_nvfp4.insert(id);
    if (!staged && (policy.weights.is_exact() || is_rounded(policy.weights, matrix.dtype()))) continue;
    Matrix values = staged ? *std::move(staged) : matrix.widened();
    round_values(policy.weights, values.values());
    matrix = std::move(values);
  }
  for (std::vector<float>& vector : weights.vectors) round_values(policy.vectors, vector);
}

std::shared_ptr<const Weights> rounded_weights(std::shared_ptr<const Weights> weights, const NumericPolicy& policy) {
  if (policy.weights.is_exact() && !policy.nvfp4) return weights;
  auto rounded = std::make_shared<Weights>(*weights);
  round_weights(policy, *rounded);
  return rounded;
}

}  // namespace thimble
