// rotary_table.h: angles of a rotary embedding.
#pragma once

#include "runtime/tensor/matrix.h"

namespace thimble {

// Of one context length: (T, dims / 2) cosines and sines.
struct RotaryTable {
  Matrix cosine, sine;
};

}  // namespace thimble
