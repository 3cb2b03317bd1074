// predicted_loss.h: what the errors of a quantized matrix cost by its MatrixLoss: nats per token, where its row weights
// are an output Fisher. H is the one collected, not the damped one that solvers work with.
// In: MatrixLoss, weights before and after (R, K).  Out: a loss.
#pragma once

#include "gptq/slope/matrix_loss.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// loss(quantized - weights) of matrix_loss.h, never below 0. The same for any thread count.
double predicted_loss(const MatrixLoss& loss, ConstMatrixView weights, ConstMatrixView quantized);

}  // namespace thimble
