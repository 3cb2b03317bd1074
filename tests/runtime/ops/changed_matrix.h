// changed_matrix.h: weights whose matrices tests change.
#pragma once

#include "runtime/base/random.h"
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

// Changes every weight of every matrix by up to a fifth, each by a factor of its own.
inline void change_all_matrices(Weights& weights) {
  for (size_t id = 0; id < weights.matrices.size(); ++id)
    change_matrix(weights, static_cast<MatrixId>(id), [stream = id + 1](Matrix& matrix) {
      for (size_t i = 0; i < matrix.values().size(); ++i)
        matrix.values()[i] *= static_cast<float>(0.8 + 0.3 * uniform_at(5, stream, i));
    });
}

}  // namespace thimble
