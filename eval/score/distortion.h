// distortion.h: how far a compressed model has moved, in its weights and in its predictions.
#pragma once

#include <cstdint>
#include <span>

#include "eval/score/windows.h"
#include "runtime/ops/scorer.h"

namespace thimble {

struct WeightError {
  double relative_error = 0;      // ||compressed - original|| / ||original||, Frobenius; 0/0 is 0
  double max_absolute_error = 0;  // of one element
};

// Both spans have the same length.
WeightError weight_error(std::span<const float> original, std::span<const float> compressed);

struct PredictionError {
  double mean_kl_nats = 0;  // KL(original || compressed) per target
  double max_kl_nats = 0;
  int64_t targets = 0;
};

// KL divergence between two models' next-token distributions at every `spacing`-th scored target of the windows.
// UsageError when the vocabularies differ, spacing is below 1, or no target remains.
PredictionError prediction_error(Scorer& original, Scorer& compressed, std::span<const Token> tokens,
                                 std::span<const Window> windows, int64_t spacing);

}  // namespace thimble
