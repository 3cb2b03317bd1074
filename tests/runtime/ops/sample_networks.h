// sample_networks.h: networks for tests of what runs or plans any network: one that has every operation with every
// option, and random ones that read and read again whatever was made before.
#pragma once

#include <memory>

#include "runtime/ops/weights.h"

namespace thimble {

// Vocabulary 13, width 12, any number of positions up to 40; two layers.
Network network_of_every_operation();

// Operations in any order, on any values before them.
Network random_network(uint64_t seed);

// Matrices that keep the scale of their input, tables about 1, small tensors between 0.3 and 1.3.
std::shared_ptr<const Weights> random_weights(Network network, uint64_t seed = 1);

}  // namespace thimble
