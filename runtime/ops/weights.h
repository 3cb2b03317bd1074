// weights.h: the weights that a Network reads, in host memory, and what gradients of its vectors are to the tensors
// that checkpoints store.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "runtime/ops/network.h"
#include "runtime/tensor/stored_matrix.h"

namespace thimble {

using NamedGradients = std::map<std::string, std::vector<double>>;

struct Weights {
  std::shared_ptr<const Network> network;
  std::vector<StoredMatrix> matrices;       // by MatrixId; copies of weights share them
  FloatTensors small;                       // every parameter that is no matrix, as stored
  std::vector<std::vector<float>> vectors;  // by VectorId, made of `small`
  std::set<MatrixId> in_nvfp4;              // whose values are those of NVFP4's codes

  const StoredMatrix& matrix(MatrixId id) const { return matrices[static_cast<size_t>(id)]; }
  const std::vector<float>& vector(VectorId id) const { return vectors[static_cast<size_t>(id)]; }
  bool is_in_nvfp4(MatrixId id) const { return in_nvfp4.contains(id); }

  // Replaces all small tensors.
  void set_small(FloatTensors tensors);
  // Bytes in memory of their own, as StoredMatrix::owned_bytes(), with the small tensors.
  uint64_t owned_bytes() const;
};

// The tensors, of the shapes of the network's parameters, as weights: all of them in float32, or matrices as they are
// stored, by name, and the others. The caller gives them up.
Weights bind_weights(std::shared_ptr<const Network> network, FloatTensors tensors);
Weights bind_weights(std::shared_ptr<const Network> network, std::map<std::string, StoredMatrix> matrices,
                     FloatTensors others);

// By the chain rule through VectorRules: gradients by stored tensors of those by vectors, at these small tensors.
// `vectors`: by VectorId, empty where there is no gradient.
NamedGradients stored_gradients(const Network& network, const FloatTensors& small,
                                const std::vector<std::vector<double>>& vectors);

}  // namespace thimble
