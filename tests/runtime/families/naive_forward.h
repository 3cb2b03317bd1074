// naive_forward.h: what the naive forward passes of the families give, and the loss of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/ops/token_sequences.h"

namespace thimble {

using NaiveRow = std::vector<double>;
using NaiveRows = std::vector<NaiveRow>;  // one per position

struct NaiveForward {
  NaiveRows logits;                                // (positions, V), softcapped
  std::map<std::string, NaiveRows> linear_inputs;  // name of a matrix below the head -> what it is multiplied by
  NaiveRows head_input;
};

// Called with the output of every matrix, and with the rows that were looked up in every table ("lookup " and its
// name), before they are used; may change them. The output head's come before the softcap.
using NaiveEdit = std::function<void(const std::string& name, NaiveRows& output)>;

// The sum of -ln softmax(logits[p])[targets[p]].
inline double naive_loss(const NaiveForward& forward, std::span<const Token> targets) {
  double loss = 0;
  for (size_t p = 0; p < targets.size(); ++p) {
    double sum = 0;
    for (double logit : forward.logits[p]) sum += std::exp(logit);  // small enough for float64
    loss += std::log(sum) - forward.logits[p][static_cast<size_t>(targets[p])];
  }
  return loss;
}

inline double largest_value(const NaiveRows& rows) {
  double largest = 0;
  for (const NaiveRow& row : rows)
    for (double value : row) largest = std::max(largest, std::abs(value));
  return largest;
}

inline double largest_difference(const NaiveRows& a, const NaiveRows& b) {
  double largest = 0;
  for (size_t p = 0; p < a.size(); ++p)
    for (size_t i = 0; i < a[p].size(); ++i) largest = std::max(largest, std::abs(a[p][i] - b[p][i]));
  return largest;
}

}  // namespace thimble
