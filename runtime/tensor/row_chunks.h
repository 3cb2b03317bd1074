// row_chunks.h: a parallel loop over the rows of a matrix, in chunks of enough work for a task.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "runtime/base/parallel.h"

namespace thimble {

// body(row) for every row of `width` floats, in any order.
inline void for_each_row(int64_t rows, int64_t width, const std::function<void(int64_t)>& body) {
  constexpr int64_t kChunkFloats = 16384;  // per task, about: enough work to pay for scheduling it
  int64_t chunk = std::max<int64_t>(1, kChunkFloats / std::max<int64_t>(1, width));
  parallel_chunks(rows, chunk, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) body(r);
  });
}

}  // namespace thimble
