// changed_matrix.h: weights whose matrices tests change.
#pragma once

#include "runtime/ops/weights.h"
#include "tests/runtime/tensor/stored_values.h"

namespace thimble {

// Gives a matrix the float32 values that change(values) leaves.
template <typename Change>
void change_matrix(Weights& weights, MatrixId id, const Change& change) {
  StoredMatrix& matrix = weights.matrices[static_cast<size_t>(id)];
  Matrix values = matrix.widened();
  change(values);
  matrix = std::move(values);
}

inline void scale_matrix(Weights& weights, MatrixId id, float factor) {
  change_matrix(weights, id, [factor](Matrix& matrix) {
    for (float& value : matrix.values()) value *= factor;
  });
}

}  // namespace thimble
