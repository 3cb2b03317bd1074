// cuda_column_dots.cuh: column_dots() of gradient_ops.h on the device, added to sums that stay there. Of float32, of
// bf16, and of bf16 with float32.
#pragma once

#include "runtime/cuda/kernels/cuda_float_matrix.cuh"
#include "runtime/ops/token_batch.h"

namespace thimble {

// Where the first of the terms that are not finite was found; see CudaColumnDots::add().
struct CudaBadTerm {
  static constexpr unsigned long long kNone = ~0ULL;
  static constexpr int64_t kPositions = int64_t{1} << 20;  // all positions are below
  unsigned long long* first = nullptr;                     // in device memory, kNone at first; null: nobody asks
  int64_t first_sequence = 0;                              // the number of the batch's first sequence
};

// Sums that are there in parts, one of each piece.
struct CudaPartialSums {
  const double* parts;  // (count, columns)
  double* sums;
  int64_t columns, count;
};
// Those that are added up at once, an argument of a kernel.
struct CudaPartialSumsList {
  static constexpr size_t kMost = 100;
  CudaPartialSums values[kMost];
};

class CudaColumnDots {
 public:
  CudaColumnDots() = default;
  // Room for sums of up to so many columns; more is taken when it is needed.
  void reserve(const BatchShape& batch, int64_t columns);

  // sums[c] += a[p][c] * b[p][c] over all positions p, in float64: over pieces of 256 positions of each sequence, which
  // are then added in order, from batch.first_position on. The same bits however sequences are grouped into batches.
  // `sums` (columns) lies in device memory. Where a sum of finite terms cannot overflow, as here, one that is not
  // finite has such a term in it: the least of their numbers (sequence * columns + column) * kPositions + position over
  // the elements of `a` that are not finite is put in bad.first, unless a lesser one is there. Where nobody asks for
  // that, the sums are there after finish(), or earlier.
  template <typename A, typename B>
  void add(BasicCudaView<const A> a, BasicCudaView<const B> b, const BatchShape& batch, double* sums,
           const CudaBadTerm& bad, cudaStream_t stream);
  // Adds up what add() has left in parts, on the same stream.
  void finish(cudaStream_t stream);

 private:
  DeviceArray<double> partials_;
  CudaPartialSumsList waiting_;  // in partials_, one after the other, of different sums
  size_t waiting_count_ = 0;
  int64_t waiting_parts_ = 0;  // elements of all
};

}  // namespace thimble
