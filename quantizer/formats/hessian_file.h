// hessian_file.h: Hessians on disk, so that a model's owner can collect them anywhere
// (docs/reference/hessian_files.md).
//
// A safetensors file: for each linear layer one F32 tensor (K, K) named as the weight, H = E[x x^T] per token, not
// damped. Layers that share an input may share one tensor through the metadata key "shared": a JSON object
// {"<layer>": "<layer whose tensor it uses>"}. Metadata "tokens" and "sequences" hold decimal counts (default 1).
// Optional, what the loss feels (LossStatistics), under the names of matrices and tables after a prefix:
//   "output_fisher/<weight>"  F32 (R)       mean squared gradient of the loss at each output
//   "lookup_fisher/<table>"   F32 (width)   the same at the rows that tokens look up
//   "row_counts/<table>"      I64 (rows)    how often each row was looked up
//   "head_hessian/<weight>"   F32 (K, K)    H at the input of the output head; at most one
// Files that this program writes carry a checksum (safetensors.h); where there is one, it is verified.
#pragma once

#include <string>
#include <vector>

#include "gptq/statistics/stored_statistics.h"

namespace thimble {

// FormatErrors name the layer: not square, not F32 or F64, not finite, asymmetric beyond rounding, negative diagonal;
// of the optional tensors: wrong rank or dtype, values that are not finite or negative. Hessians of F32 stay in the
// file, which is mapped; others are rounded to it, as the statistics of the loss are.
StoredStatistics read_hessian_file(const std::string& path);

// The layers whose Hessians read_hessian_file() would give, from the file's header alone.
std::vector<std::string> hessian_file_layers(const std::string& path);

// Loads one Hessian at a time.
void write_hessian_file(const std::string& path, const StoredStatistics& statistics);

// Rounds every value to float32, as the file does, and StoredHessian: then a saved set gives the very same artifact as
// the run that saved it.
void round_to_float32(LossStatistics& loss);

}  // namespace thimble
