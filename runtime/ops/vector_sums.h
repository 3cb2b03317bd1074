// vector_sums.h: what a backward pass adds up, column by column, for gradients of a network's vectors, and how those
// are made of it. dy = gradient at a node's output. Of a node, sums over all rows, of kind 0 or 1:
//   Linear        0: dy                           LayerNorm  0: dy * normed x   1: dy
//   Add           0: dy * a                       RmsNorm    0: dy * normed x
//   Mix           0: dy * x   1: dy * a           Heads      0: (dy before the rotation) * normed x
//   Skip          0: dy * a   1: dy * x           Smear      0: dy * (x[p-1] - x[p])
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/ops/network.h"

namespace thimble {

// Gradients by a network's vectors, by VectorId (weights.h: stored_gradients()).
using VectorGradients = std::vector<std::vector<double>>;

// Where the sums of each node and kind lie in one list.
class VectorSumLayout {
 public:
  explicit VectorSumLayout(const Network& network);

  int64_t count() const { return count_; }
  // The first of the output's columns; -1 where the node has no such vector.
  int64_t first(size_t node, int kind) const { return first_[node][static_cast<size_t>(kind)]; }

 private:
  std::vector<std::array<int64_t, 2>> first_;
  int64_t count_ = 0;
};

// Of sums over any number of passes with these vectors.
VectorGradients vector_gradients(const Network& network, std::span<const std::vector<float>> vectors,
                                 std::span<const double> sums);

}  // namespace thimble
