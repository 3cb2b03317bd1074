// joint_hessian.h: input pairs from second moments of both models' inputs together, which tests make up.
#pragma once

#include <algorithm>

#include "gptq/factor/input_pairs.h"

namespace thimble {

// The pair from the joint Hessian of (x~, x), of size 2 K.
inline InputPair split_joint_hessian(const SymmetricMatrix& joint) {
  const int64_t columns = joint.size() / 2;
  InputPair pair{SymmetricMatrix(columns), MatrixF64(columns, columns)};
  for (int64_t i = 0; i < columns; ++i) {
    std::copy_n(joint.lower_row(i), i + 1, pair.hessian.lower_row(i));
    for (int64_t j = 0; j < columns; ++j) pair.drift(i, j) = joint(columns + i, j) - joint(i, j);
  }
  return pair;
}

}  // namespace thimble
