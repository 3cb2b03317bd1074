// token_batch_test.cpp: which tokens and positions the rows of a batch are, and which rows of tables they look up.
#include "runtime/ops/token_batch.h"

#include <gtest/gtest.h>

namespace thimble::token_batch_test {
namespace {

TEST(TokenPairs, BucketsOfKnownPairs) {
  EXPECT_EQ(token_pair_bucket(5, TokenBatch::kNoToken, 3072), 3071);
  EXPECT_EQ(token_pair_bucket(0, 0, 3072), 0);
  EXPECT_EQ(token_pair_bucket(1, 2, 3072), (36313 ^ 54382) % 3071);
  // 36313 * 65535 = 2379772455 wraps to -1915194841, which stays negative under xor; the remainder is floored.
  EXPECT_EQ(token_pair_bucket(65535, 0, 3072), 3071 - 1915194841 % 3071);
  // 27191 * 65535 = 1781962185 does not wrap.
  EXPECT_EQ(token_pair_bucket(0, 65535, 3072), 1781962185 % 3071);
}

TEST(TokenPairs, BucketsStayBelowTheTable) {
  for (int64_t table : {2, 3, 53, 3072})
    for (Token token = 0; token < 65536; token += 97)
      for (Token previous = 0; previous < 65536; previous += 89) {
        int32_t bucket = token_pair_bucket(token, previous, table);
        ASSERT_GE(bucket, 0);
        ASSERT_LT(bucket, table - 1);
      }
}

TEST(TokenBatchOfAWindow, KnowsThePreviousTokens) {
  TokenBatch batch = window_batch(std::vector<Token>{7, 3, 9});
  EXPECT_EQ(batch.tokens, (std::vector<Token>{7, 3, 9}));
  EXPECT_EQ(batch.previous, (std::vector<Token>{TokenBatch::kNoToken, 7, 3}));
  EXPECT_EQ(batch.shape.sequences, 1);
  EXPECT_EQ(batch.shape.positions, 3);
  EXPECT_EQ(batch.shape.first_position, 0);
}

TEST(BatchShape, RowsAreSequenceMajor) {
  const BatchShape shape{3, 2, 5};
  EXPECT_EQ(shape.rows(), 6);
  const int64_t positions[] = {5, 6, 5, 6, 5, 6};
  for (int64_t row = 0; row < 6; ++row) EXPECT_EQ(shape.position_of(row), positions[row]);
}

TEST(LookedUpRows, AreTokensPositionsOrPairs) {
  const TokenBatch batch{{8, 1, 2, 2}, {TokenBatch::kNoToken, 8, 5, 2}, {2, 2, 3}};
  EXPECT_EQ(looked_up_rows({}, batch), batch.tokens);
  EXPECT_EQ(looked_up_rows({RowIndex::Kind::kPosition}, batch), (std::vector<int32_t>{3, 4, 3, 4}));
  const std::vector<int32_t> pairs = looked_up_rows({RowIndex::Kind::kTokenPair, 7}, batch);
  ASSERT_EQ(pairs.size(), 4u);
  EXPECT_EQ(pairs[0], 6);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(pairs[i], token_pair_bucket(batch.tokens[i], batch.previous[i], 7));
}

}  // namespace
}  // namespace thimble::token_batch_test
