// network_uses.h: who makes and who reads the values of a network, and how often its matrices are used: found once, for
// those who ask often.
#pragma once

#include <optional>
#include <vector>

#include "runtime/ops/network.h"

namespace thimble {

class NetworkUses {
 public:
  explicit NetworkUses(const Network& network);

  // Nodes.
  size_t maker_of(ValueId value) const { return makers_[static_cast<size_t>(value)]; }
  const std::vector<size_t>& readers_of(ValueId value) const { return readers_[static_cast<size_t>(value)]; }
  // The only node that reads a value below the head.
  std::optional<size_t> only_reader_of(ValueId value) const;
  // By a product, a lookup, or the head.
  bool has_one_use(MatrixId matrix) const { return uses_[static_cast<size_t>(matrix)] == 1; }

 private:
  ValueId head_;  // what the head reads
  std::vector<size_t> makers_;
  std::vector<std::vector<size_t>> readers_;
  std::vector<int> uses_;
};

}  // namespace thimble
