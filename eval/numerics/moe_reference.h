// moe_reference.h: a mixture-of-experts layer in float64, and where a pipeline in NVFP4 first leaves it.
// In: a layer, its input and the trace of a pipeline (runtime/operators/moe_layer.h).  Out: errors and bounds, stage by
// stage.
//
// Every stage is compared with float64 arithmetic on what the pipeline itself had before that stage, so that an error
// shows where it was made and nowhere else. Bounds |y - r| <= b, per element:
//   l1, l2, scatter           rounding of float32 sums: 2^-23 * terms * sum of magnitudes
//   router                    the same of its logits, relative to the weight
//   activation                2e-6 relative, and what float32 exponentials cannot hold
//   scales                    half a unit of UE4M3 around (largest magnitude of the block) / 6
//   codes                     half the distance between the neighbours in E2M1, in units of the block's scale
// Of logits closer than their bound either may be chosen.
#pragma once

#include <cmath>
#include <vector>

#include "runtime/operators/moe_layer.h"

namespace thimble {

// The reference of a product's element, with what bounds are made of.
struct Float64Dot {
  double sum = 0;        // of a(i) b(i), in index order
  double magnitude = 0;  // of |a(i) b(i)|
};

// Elements of float or double; products of floats are exact.
template <typename A, typename B>
Float64Dot float64_dot(const A* a, const B* b, int64_t count) {
  Float64Dot dot;
  for (int64_t i = 0; i < count; ++i) {
    const double product = double{a[i]} * double{b[i]};
    dot.sum += product;
    dot.magnitude += std::abs(product);
  }
  return dot;
}

struct MoeStageErrors {
  MoeStage stage = MoeStage::kRouter;
  int64_t elements = 0;
  double max_absolute = 0, max_relative = 0;  // |y - r|, and / |r| where r is not 0
  double worst_share = 0;                     // of the bound; infinite for NaN
  int64_t over_count = 0;                     // elements beyond their bound
  int64_t first_row = -1, first_column = -1;  // the first of these, with
  double first_found = 0, first_reference = 0;
  // Root mean square of the difference to the whole layer in float64 with the same weights, where nothing is rounded,
  // relative to that of the latter: what NVFP4 activations cost up to here.
  double drift = 0;
  bool passed() const { return over_count == 0; }
};

// In the order of the stages. `trace` must be of this layer and input.
std::vector<MoeStageErrors> compare_moe(const MoeLayer& layer, ConstMatrixView x, const MoeTrace& trace);

// The first that failed; null when all passed.
const MoeStageErrors* first_failure(const std::vector<MoeStageErrors>& stages);

}  // namespace thimble
