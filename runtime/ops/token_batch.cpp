// token_batch.cpp: see token_batch.h.
#include "runtime/ops/token_batch.h"

#include <algorithm>

namespace thimble {

TokenBatch window_batch(std::span<const Token> tokens) {
  TokenBatch batch;
  batch.shape = {1, static_cast<int64_t>(tokens.size()), 0};
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.previous.assign(tokens.size(), TokenBatch::kNoToken);
  if (!tokens.empty()) std::ranges::copy(tokens.first(tokens.size() - 1), batch.previous.begin() + 1);
  return batch;
}

std::vector<int32_t> looked_up_rows(const RowIndex& index, const TokenBatch& batch) {
  if (index.kind == RowIndex::Kind::kToken) return batch.tokens;
  std::vector<int32_t> rows;
  rows.reserve(batch.tokens.size());
  for (size_t p = 0; p < batch.tokens.size(); ++p)
    rows.push_back(index.kind == RowIndex::Kind::kPosition
                       ? static_cast<int32_t>(batch.shape.position_of(static_cast<int64_t>(p)))
                       : token_pair_bucket(batch.tokens[p], batch.previous[p], index.buckets));
  return rows;
}

int32_t token_pair_bucket(Token token, Token previous, int64_t buckets) {
  const auto modulus = static_cast<int32_t>(buckets - 1);
  if (previous == TokenBatch::kNoToken) return modulus;
  // Products wrap as int32 does in the training code; the remainder is floored, never negative.
  const auto mixed =
      static_cast<int32_t>((36313u * static_cast<uint32_t>(token)) ^ (27191u * static_cast<uint32_t>(previous)));
  const int32_t remainder = mixed % modulus;
  return remainder < 0 ? remainder + modulus : remainder;
}

}  // namespace thimble
