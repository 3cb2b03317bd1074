// observers.h: who looks on while passes run. What they are handed is valid during the call only.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/tensor/matrix.h"

namespace thimble {

// Receives the input of every linear layer while a forward pass runs.
class LinearObserver {
 public:
  virtual ~LinearObserver() = default;
  // `weights`: names of the matrices that this input (P, K) multiplies.
  virtual void on_linear_input(std::span<const std::string> weights, ConstMatrixView input) = 0;
};

// Receives gradients of the loss while a backward pass runs, last layer first: the mirror of LinearObserver.
class GradientObserver {
 public:
  virtual ~GradientObserver() = default;
  // `gradient` (P, N): by the output of matrix `weight` (N, K), the output head's before the softcap. `output` (P, N):
  // what the matrix gave, y = W x, before anything else was done to it; empty where nobody asked for it (PassOptions).
  // So the gradient by the logarithm of a gain of row r is sum_p gradient[p][r] * output[p][r]. The output head's come
  // in pieces (logit_pieces.h), in order, that begin with row `first_row` of the window; others whole, from row 0.
  virtual void on_output_gradient(const std::string& weight, int64_t first_row, ConstMatrixView gradient,
                                  ConstMatrixView output) = 0;
  // `gradient` (P, width): by the rows rows[p] that were looked up in `table`. Of a table that is tied to the output
  // head this is the input side only.
  virtual void on_lookup_gradient(const std::string& table, std::span<const int32_t> rows,
                                  ConstMatrixView gradient) = 0;
  // Only where the pass reads inputs of products (PassOptions): after on_output_gradient(), with the same `gradient`
  // (P, N), and `input` (P, K), which matrix `weight` (N, K) multiplied. So the gradient by the matrix is the sum of
  // gradient^T input over all calls, and of what was looked up in it.
  virtual void on_linear_gradient(const std::string& /*weight*/, ConstMatrixView /*gradient*/,
                                  ConstMatrixView /*input*/) {}
};

}  // namespace thimble
