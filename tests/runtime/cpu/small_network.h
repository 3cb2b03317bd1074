// small_network.h: networks of a few operations on given matrices, run by CpuPass: for tests of single operations.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/cpu/cpu_pass.h"
#include "runtime/ops/ops.h"

namespace thimble {

// How the operations find their inputs.
enum class Inputs {
  kOwn,    // in memory of their own, over which an operation may write
  kViews,  // as columns between others that are NaN, so that a read outside poisons the result
};
constexpr Inputs kAllInputs[] = {Inputs::kOwn, Inputs::kViews};

struct SmallTensor {
  Shape shape;
  std::vector<float> values;
  Role role = Role::kSmall;
};

struct SmallNetwork {
  // Writes the operations; gives their result.
  using Write = std::function<Value(Ops&, const std::vector<Value>& inputs)>;

  std::vector<Matrix> inputs;  // of the same number of rows
  int64_t width = 0;           // of the result
  std::map<std::string, SmallTensor> tensors;
  Write write;
};

// The network's description and weights. Inputs are looked up in tables "input0", ... by row_batch()'s tokens. The head
// is the identity where `has_head`, else one row of zeros.
Weights weights_of(const SmallNetwork& small, Inputs how, bool has_head = false);

// The batch whose row p looks up row p of each input.
TokenBatch row_batch(const BatchShape& shape);

// What the operations give, (rows, width), by default of one sequence. All memory of the pass held NaN before.
Matrix run_small(const SmallNetwork& small, Inputs how);
Matrix run_small(const SmallNetwork& small, Inputs how, const BatchShape& shape);
// The same with a cache, as it is.
Matrix run_small(const BatchShape& shape, const Weights& weights, CpuCache& cache);

// Uniform in [low, high), the same for the same seed.
std::vector<float> random_vector(int64_t count, uint64_t seed, double low = -1, double high = 1);
Matrix random_matrix(int64_t rows, int64_t columns, uint64_t seed, double scale = 1);
Matrix filled(int64_t rows, int64_t columns, const std::function<double(int64_t, int64_t)>& value);

bool same_bits(ConstMatrixView a, ConstMatrixView b);

// Every element within tolerance(r, c) of expected(r, c).
void expect_close(ConstMatrixView found, const std::function<double(int64_t, int64_t)>& expected,
                  const std::function<double(int64_t, int64_t)>& tolerance);

// One element, remainders of every vector width, several chunks of rows, a row wider than a chunk.
struct Extent {
  int64_t rows, cols;
};
constexpr Extent kExtents[] = {{1, 1}, {1, 7}, {3, 17}, {5, 64}, {2, 129}, {300, 65}, {2, 17000}};

}  // namespace thimble
