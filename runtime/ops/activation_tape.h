// activation_tape.h: what a backward pass must know of a forward pass over one window from its start.
// P = positions, D model width, K = G*d key/value width, M MLP width. What row operations give back at little cost
// (norms, mixes, rotations, the activation) is not kept: 4 P (5 D + 2 K + M) bytes per layer.
#pragma once

#include <vector>

#include "runtime/cpu/backend.h"
#include "runtime/cpu/forward.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

struct LayerActivations {
  Matrix input;             // (P, D) after the skip connection has joined, before the residual mix
  Matrix query, key;        // (P, D), (P, K) outputs of their matrices
  Matrix value;             // (P, K) the same with the value embedding added
  Matrix attended;          // (P, D) input of the output projection
  Matrix attention_branch;  // (P, D) output of the output projection
  Matrix hidden;            // (P, M) output of the MLP's first matrix
  Matrix mlp_branch;        // (P, D) output of its second
};

struct ActivationTape {
  TokenBatch batch;        // one sequence from position 0
  Matrix embedded;         // (P, D) token plus bigram embedding
  Matrix bigram_branch;    // (P, D) output of the bigram projection; empty without bigrams
  Matrix x0;               // (P, D) input of layer 0
  Matrix value_embedding;  // (P, K) output of the value embedding's projection; empty without
  std::vector<LayerActivations> layers;
  Matrix output;       // (P, D) of the last layer
  Matrix head_output;  // (P, V) logits before the softcap
};

}  // namespace thimble
