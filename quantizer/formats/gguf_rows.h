// gguf_rows.h: the order of rows of query and key projections. Rotary positions turn column k of a head of d columns
// together with column d / 2 + k; GGUF files of some architectures have the two beside each other, 2 k and 2 k + 1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace thimble {

enum class RowOrder { kHalves, kInterleaved };

// The matrix (rows, any width) of so many heads, which divide the rows into even numbers, brought from the other order
// to this one.
inline std::vector<float> with_row_order(RowOrder order, const std::vector<float>& values, int64_t rows,
                                         int64_t heads) {
  std::vector<float> ordered(values.size());
  const auto width = static_cast<std::ptrdiff_t>(values.size()) / rows;
  const int64_t half = rows / heads / 2;
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / (2 * half), within = row % (2 * half);
    const int64_t other =
        order == RowOrder::kHalves ? within % half * 2 + within / half : within / 2 + within % 2 * half;
    std::copy_n(values.begin() + (head * 2 * half + other) * width, width, ordered.begin() + row * width);
  }
  return ordered;
}

}  // namespace thimble
