// loss_blocks.cpp: see loss_blocks.h. Sums are float64 in the order of targets and blocks, whoever scored them.
#include "eval/score/loss_blocks.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

namespace thimble {

int64_t block_count(int64_t targets, int64_t stride) {
  const int64_t count = std::min(kMostBlocks, targets / std::max(kLeastBlockTargets, stride));
  return count < kLeastBlocks ? 0 : count;
}

LossBlocks sum_blocks(std::span<const float> nll_nats, std::span<const Token> tokens, const ByteTable& bytes,
                      int64_t stride) {
  const auto targets = static_cast<int64_t>(nll_nats.size());
  const int64_t count = block_count(targets, stride);
  LossBlocks blocks;
  for (int64_t k = 0; k < count; ++k) {
    const int64_t begin = k * targets / count, end = (k + 1) * targets / count;
    const auto block = nll_nats.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    blocks.loss_nats.push_back(std::accumulate(block.begin(), block.end(), 0.0));
    blocks.text_bytes.push_back(
        bytes.bytes_of_targets(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin + 1))));
  }
  return blocks;
}

std::optional<double> paired_standard_error(const LossBlocks& first, const LossBlocks& second) {
  const size_t count = first.loss_nats.size();
  if (count < 2 || second.loss_nats.size() != count || first.text_bytes != second.text_bytes) return std::nullopt;
  double difference_bits = 0, text_bytes = 0;
  std::vector<double> block_bits(count);
  for (size_t k = 0; k < count; ++k) {
    block_bits[k] = (second.loss_nats[k] - first.loss_nats[k]) / std::numbers::ln2;
    difference_bits += block_bits[k];
    text_bytes += static_cast<double>(first.text_bytes[k]);
  }
  if (text_bytes == 0) return std::nullopt;
  const double gap = difference_bits / text_bytes;
  double squares = 0;
  for (size_t k = 0; k < count; ++k) {
    const double residual = block_bits[k] - gap * static_cast<double>(first.text_bytes[k]);
    squares += residual * residual;
  }
  const auto blocks = static_cast<double>(count);
  return std::sqrt(blocks / (blocks - 1) * squares) / text_bytes;
}

}  // namespace thimble
