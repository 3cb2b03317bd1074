// small_tensors.h: the tensors of a golf-gpt that are no matrices (gains, scales, mixes, gates) under the names and in
// the form that checkpoints hold them in, where a Model has them ready for use: their gradients, and how to change
// them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/cpu/backward.h"
#include "runtime/families/golf/model.h"

namespace thimble {

using NamedGradients = std::map<std::string, std::vector<double>>;

// By the chain rule through sigma() of gates and the product of the scales of value embeddings. `small`: every small
// tensor of the model; `gradients`: at those values.
NamedGradients stored_gradients(const ModelConfig& config, const FloatTensors& small, const SmallGradients& gradients);

// Replaces all small tensors of `model`, none of its matrices.
void set_small_tensors(Model& model, const FloatTensors& small);

}  // namespace thimble
