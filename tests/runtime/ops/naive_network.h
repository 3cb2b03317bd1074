// naive_network.h: any network once more, in float64 and the plainest loops, straight from the definitions of
// network.h. What fast passes, and their gradients by central differences, are tested against.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/ops/token_batch.h"
#include "runtime/ops/weights.h"

namespace thimble {

// Every parameter's elements, by name.
using NaiveTensors = std::map<std::string, std::vector<double>>;

NaiveTensors naive_tensors(const Weights& weights);

// A vector as its rule makes it of stored tensors.
std::vector<double> naive_vector(const VectorRule& rule, const NaiveTensors& tensors);

double naive_activation(Activation activation, double x);

// What each operation gives, by ValueId, of a batch whose sequences begin at position 0.
std::vector<MatrixF64> naive_values(const Network& network, const NaiveTensors& tensors, const TokenBatch& batch,
                                    int64_t context);

}  // namespace thimble
