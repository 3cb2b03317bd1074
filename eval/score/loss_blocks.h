// loss_blocks.h: the loss of an evaluation by blocks of text, and from two models' blocks the standard error of the gap
// between them: how far it could lie from the gap on all text of this kind by the choice of this text alone.
//
// The gap is a ratio of sums over targets, D = sum d / (ln 2 * sum b), with d the second model's loss less the first's
// at a target and b the target's bytes. Neighbouring targets share subject and context, so they say less than as many
// independent ones would; sums over long enough blocks of them hardly depend on each other (batch means). With d_k and
// b_k the sums over block k of K, the standard error of the ratio is (Cochran, Sampling Techniques, 3rd edition, 2.11)
//
//   SE(D) = sqrt( K / (K - 1) * sum_k (d_k / ln 2 - D b_k)^2 ) / sum_k b_k
//
// Because losses are subtracted target by target, what makes a text hard for both models is not in it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "eval/text/byte_table.h"

namespace thimble {

constexpr int64_t kLeastBlockTargets = 256;
constexpr int64_t kMostBlocks = 128;  // longer texts get longer blocks, which depend on each other less
constexpr int64_t kLeastBlocks = 16;  // with these a standard error is itself known within about 18 %

// Sums over K blocks of consecutive targets, first target first. Of N targets, block k holds those from k N / K,
// rounded down, up to the next block's: equal numbers within one.
struct LossBlocks {
  std::vector<double> loss_nats;    // (K)
  std::vector<int64_t> text_bytes;  // (K)
  bool operator==(const LossBlocks&) const = default;
};

// K: blocks hold at least kLeastBlockTargets targets and those of one window (`stride`), and are at most kMostBlocks.
// 0 where that leaves fewer than kLeastBlocks.
int64_t block_count(int64_t targets, int64_t stride);

// nll_nats[i] is the loss of target i, tokens[i + 1]; tokens.size() is nll_nats.size() + 1.
LossBlocks sum_blocks(std::span<const float> nll_nats, std::span<const Token> tokens, const ByteTable& bytes,
                      int64_t stride);

// Of the gap in bits per byte. nullopt where there are no blocks or the two are not of the same text; exactly 0 for
// equal losses.
std::optional<double> paired_standard_error(const LossBlocks& first, const LossBlocks& second);

}  // namespace thimble
