// stored_values.h: the values of stored matrices, to compare.
#pragma once

#include <vector>

#include "runtime/tensor/stored_matrix.h"

namespace thimble {

// In float32, row by row.
inline std::vector<float> values_of(const StoredMatrix& matrix) {
  const Matrix values = matrix.widened();
  return {values.values().begin(), values.values().end()};
}

}  // namespace thimble
