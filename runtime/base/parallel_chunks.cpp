// parallel_chunks.cpp: loops over pieces of fixed sizes, made of parallel_for().
#include <algorithm>

#include "runtime/base/parallel.h"

namespace thimble {

void parallel_chunks(int64_t count, int64_t chunk, const std::function<void(int64_t, int64_t)>& body) {
  parallel_for((count + chunk - 1) / chunk, [&](int64_t i) { body(i * chunk, std::min(count, (i + 1) * chunk)); });
}

void for_each_row(int64_t rows, int64_t width, const std::function<void(int64_t)>& body) {
  constexpr int64_t kChunkFloats = 16384;  // per task, about: enough work to pay for scheduling it
  const int64_t chunk = std::max<int64_t>(1, kChunkFloats / std::max<int64_t>(1, width));
  parallel_chunks(rows, chunk, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) body(r);
  });
}

}  // namespace thimble
