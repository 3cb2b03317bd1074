// token_batch.h: the tokens that a pass runs over.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ops/network.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

// Which positions the rows of a batch are: `sequences` sequences, each with positions
// [first_position, first_position + positions); sequence-major.
struct BatchShape {
  int64_t sequences = 1;
  int64_t positions = 0;
  int64_t first_position = 0;
  int64_t rows() const { return sequences * positions; }
  int64_t position_of(int64_t row) const { return first_position + row % positions; }
};

// The tokens of a batch and, for each, the token before it in its sequence (kNoToken for a sequence's first).
struct TokenBatch {
  static constexpr Token kNoToken = -1;
  std::vector<Token> tokens, previous;
  BatchShape shape;
};

// A batch that holds one sequence from its start.
TokenBatch window_batch(std::span<const Token> tokens);

// The row of a table that each row of a batch looks up.
std::vector<int32_t> looked_up_rows(const RowIndex& index, const TokenBatch& batch);

// ((36313 * token) xor (27191 * previous)) mod (buckets - 1), in int32; buckets - 1 without a previous token.
int32_t token_pair_bucket(Token token, Token previous, int64_t buckets);

}  // namespace thimble
