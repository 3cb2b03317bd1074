// cuda_sizes.h: how large the arrays are that the classes of this folder allocate in device memory, from a network and
// shapes alone. Their constructors allocate by these, and plans of memory (cuda_memory.h) add them up; so it is
// compiled in builds without CUDA too. R, K = rows and columns of a matrix.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/ops/fusion.h"
#include "runtime/ops/numeric_policy.h"

namespace thimble {

// Bytes of an element of weights and activations: float, bf16 or fp16.
int64_t cuda_element_bytes(Numerics numerics);
// What of a network a pass in this mode may fuse.
FusionOptions cuda_fusion_options(const NumericPolicy& policy, int64_t element_bytes);
// The same without fusing products: for backward passes, and as the reference of composites.
FusionOptions cuda_plain_options(int64_t element_bytes);

// Columns that a head takes in caches and padded matrices. Heads of more than 256 columns are a DeviceError.
int64_t cuda_head_width(int64_t head_dim);

// Of a MatrixUse or of rows of several, as it is stored.
struct CudaMatrixSize {
  int64_t rows = 0, columns = 0;
};

struct CudaWeightSizes {
  std::vector<CudaMatrixSize> matrices;     // by MatrixId; without rows where the matrix lies in a projection
  std::vector<CudaMatrixSize> projections;  // by composite: queries, keys and values; without rows for others
  std::vector<CudaMatrixSize> tables;       // by Fusion::tables
  std::vector<int64_t> vectors;             // by VectorId
  // Floats of a composite's own: bias and scale of a projection's heads, a scale of one element as a vector.
  std::vector<int64_t> biases, scales;
};
CudaWeightSizes cuda_weight_sizes(const Network& network, const Fusion& fusion);

// Passes of at most so many rows, of which so many are needed. `stepping`: one position of each sequence.
struct CudaPassShape {
  int64_t context = 0, rows = 0, needed = 0;
  bool stepping = false;
};

struct CudaPassSizes {
  std::vector<int64_t> slots;     // elements; those of compact places follow the others
  std::vector<int64_t> squares;   // by slot, floats; 0: none
  std::vector<int64_t> rotaries;  // by RotaryId, pairs of floats
  int64_t head_input = 0;         // elements: the needed rows, where the head cannot read them in place
  int64_t head_squares = 0;       // floats: theirs, where it reads a deferred norm
  int64_t loss_rows = 0;          // rows that the head's product may have
  int64_t loss_parts = 0;         // pairs of floats
  int64_t product_input = 0;      // elements: inputs of products that are not multiplied where they lie
};
CudaPassSizes cuda_pass_sizes(const Network& network, const Fusion& fusion, const NumericPolicy& policy,
                              const CudaPassShape& shape);
// Elements that showing inputs of linear layers takes besides.
int64_t cuda_shown_elements(const Network& network, int64_t rows);

// Keys and values of `caches` caches of the widest kind, and states; elements.
struct CudaCacheSizes {
  std::vector<int64_t> caches;  // one for each of the network's, or only one for all
  std::vector<int64_t> states;
};
CudaCacheSizes cuda_cache_sizes(const Network& network, int64_t sequences, int64_t capacity, bool shares_one);

// A backward pass over whole windows of `positions`, in float32.
struct CudaGradientSizes {
  std::vector<int64_t> slots;  // floats
  std::vector<int64_t> rotaries;
  int64_t logits = 0;   // floats; their gradient takes as many
  int64_t losses = 0;   // floats
  int64_t scores = 0;   // floats of attention, twice
  int64_t scratch = 0;  // floats: what a transpose computes for gradients of vectors, twice
  int64_t sums = 0;     // doubles: parts of sums over rows
};
CudaGradientSizes cuda_gradient_sizes(const Network& network, const PassPlan& plan, int64_t context, int64_t sequences,
                                      int64_t positions);

// Tokens, targets and losses of each of the two batches of windows that are on their way.
constexpr int64_t cuda_window_rows(int64_t context, int64_t windows) { return windows * context; }
// Tokens of sequences that grow, and the logits of one position of each.
constexpr int64_t cuda_text_tokens(int64_t context, int64_t sequences) { return sequences * context; }
int64_t cuda_text_logits(const Network& network, int64_t sequences);

// Bytes of products that wait to be added to a Hessian of so many columns: at most `most_bytes`, but at least those of
// one piece.
uint64_t cuda_gram_bytes(int64_t columns, int64_t length, int64_t sequences, uint64_t most_bytes);

// Rows of float32 sums over rows are cut into pieces of so many.
constexpr int64_t kCudaDotPiece = 256;

}  // namespace thimble
