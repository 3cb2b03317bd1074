// gradient_check.h: all that a backward pass of CpuPass gives against central differences of a naive pass in float64
// (naive_network.h): by tables, matrices and small tensors alike.
#pragma once

#include "runtime/ops/token_batch.h"
#include "runtime/ops/weights.h"

namespace thimble {

// The loss is a random weighting of what the head's product gives. Every element of every parameter, or a spread of
// them where there are many. The allowance grows with `terms`, the number of terms that float32 sums.
void expect_gradients(const Weights& weights, const TokenBatch& batch, double terms);

}  // namespace thimble
