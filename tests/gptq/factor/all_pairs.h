// all_pairs.h: what every layer of a model reads while it changes.
#pragma once

#include <memory>
#include <vector>

#include "gptq/factor/input_pairs.h"

namespace thimble {

// Of the first `sequences` of the tokens: every input of the model's layers, each matrix changed once its input is
// read.
inline std::vector<InputPair> read_all_pairs(const std::shared_ptr<const Weights>& model, const Device& device,
                                             const TokenSequences& tokens, int64_t sequences,
                                             Ranks& ranks = no_other_ranks()) {
  const std::unique_ptr<InputPairs> pairs = make_input_pairs(model, model, device, tokens, sequences, ranks);
  std::vector<InputPair> read;
  for (const LinearInput& input : inputs_of_layers(*model->network)) {
    read.push_back(pairs->collect(input).on_host());
    for (MatrixId id : input.readers) {
      Matrix changed = model->matrix(id).widened();
      for (float& weight : changed.values()) weight *= 1.125F;
      pairs->replace(model->network->matrix(id).name, changed);
    }
  }
  return read;
}

}  // namespace thimble
