// input_pairs.h: what a layer of a model that is quantized so far reads, beside what it reads in the original. A layer
// that is quantized later can make up for what those before it did to its input: instead of w it aims at the w' with
//   w' x~ = w x  in the mean square,   w' = w + w E[(x - x~) x~^T] (E[x~ x~^T] + damping)^-1
// for inputs x of the original and x~ of the quantized model (Qronos, arXiv 2505.11695; GPTAQ, arXiv 2504.02692), and
// minimizes its own error by the Hessian E[x~ x~^T].
// K = input columns of a layer, R = its output rows.
#pragma once

#include <span>
#include <string>

#include "gptq/hessian.h"
#include "runtime/device.h"
#include "runtime/generate.h"
#include "runtime/model.h"

namespace thimble {

// Means over all tokens.
struct InputPair {
  SymmetricMatrix hessian;  // (K, K) of x~ x~^T
  MatrixF64 drift;          // (K, K) of (x - x~) x~^T
};

// Runs the first `sequences` of the tokens, less the last of each, through both models. `layers`: those that read the
// input, in the order in which forward passes name them. On CUDA devices, the first one does it all.
// In bf16 on CUDA devices with that mode, else in fp32, whatever the numeric mode.
InputPair collect_input_pair(const Model& original, const Model& quantized, const Device& device,
                             const TokenSequences& tokens, int64_t sequences, std::span<const std::string> layers);

// The pair from the joint Hessian of (x~, x), of size 2 K.
InputPair split_joint_hessian(const SymmetricMatrix& joint);

// w' for every row of `weights` (R, K), `strength` of the way from w. `damping`: relative to the Hessian's mean
// diagonal, as in factor_hessian(), whose errors these are.
Matrix shifted_weights(ConstMatrixView weights, const InputPair& pair, double damping, double strength,
                       const std::string& layer);

}  // namespace thimble
