// naive_golf.h: the golf-gpt forward pass once more, in float64 and the plainest loops, straight from the model's
// definition. What the fast one is tested against; shares nothing with it but the config and the tensor names.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runtime/families/golf/golf_config.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

using NaiveRow = std::vector<double>;
using NaiveRows = std::vector<NaiveRow>;  // one per position

struct NaiveForward {
  NaiveRows logits;                                // (positions, V), softcapped
  std::map<std::string, NaiveRows> linear_inputs;  // name of a matrix -> what it is multiplied by
};

// Called with the output of every matrix, and with the rows that were looked up in every table ("lookup " and its
// name), before they are used; may change them. The output head's come before the softcap.
using NaiveEdit = std::function<void(const std::string& name, NaiveRows& output)>;

// One window from its start. `context_length` is T of the rotary base, at least the window's length.
NaiveForward naive_golf_forward(const GolfConfig& config, const TensorMap& unbanked, std::span<const uint16_t> tokens,
                                int64_t context_length, const NaiveEdit& edit = {});

// The sum of -ln softmax(logits[p])[targets[p]].
double naive_loss(const NaiveForward& forward, std::span<const uint16_t> targets);

}  // namespace thimble
