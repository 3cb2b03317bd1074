// logit_pieces.h: logits, losses and gradients at the output head are made for some rows at a time: with a vocabulary
// of 262,144, a window of 2048 tokens would have 2 GiB of logits.
#pragma once

#include <algorithm>
#include <cstdint>

namespace thimble {

// How many logits there are at once: 128 MiB in float32.
constexpr int64_t kMostLogits = int64_t{1} << 25;
// Rows of pieces are a multiple of this many: rows then lie in memory, and in the tiles of products, as they would
// among all.
constexpr int64_t kLogitRowMultiple = 64;

// Rows of a piece. A function of the vocabulary alone, since sums over pieces round.
constexpr int64_t logit_rows(int64_t vocabulary) {
  return std::max<int64_t>(1, kMostLogits / vocabulary / kLogitRowMultiple) * kLogitRowMultiple;
}

// body(first row, rows) for each piece of `rows` rows, in order.
template <typename Body>
void for_each_logit_piece(int64_t rows, int64_t vocabulary, const Body& body) {
  const int64_t most = logit_rows(vocabulary);
  for (int64_t first = 0; first < rows; first += most) body(first, std::min(most, rows - first));
}

}  // namespace thimble
