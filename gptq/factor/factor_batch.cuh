// factor_batch.cuh: factor_hessian() on the device for many Hessians of equally padded size at once.
// K = columns of a Hessian, P = K rounded up to a multiple of kTile.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "gptq/factor/cholesky.cuh"
#include "gptq/factor/f64_tile.cuh"
#include "gptq/factor/hessian_factor.h"
#include "gptq/statistics/device_arena.cuh"

namespace thimble {

inline int64_t padded_columns_of(int64_t columns) { return round_up(columns, kTile); }

// One Hessian; what is pointed to must outlive the batch.
struct FactorItem {
  const SymmetricMatrix* hessian;
  const HessianFactor* unfactored;  // with the damping to begin with
  const std::string* name;          // for errors
};

class FactorBatch {
 public:
  // Takes its memory from the arena.
  FactorBatch(std::vector<FactorItem> items, int64_t padded_columns, Arena& arena);

  // Uploads and factors every Hessian, those that fail again with more damping, and waits. `meanwhile` is called once
  // when the device has begun.
  void factor(cudaStream_t stream, const std::function<void()>& meanwhile);

  // Of the i-th Hessian: U and its order in device memory, and the damping that was used.
  const CholeskyJob& job(size_t i) const { return jobs_[i]; }
  double damping(size_t i) const { return dampings_[i]; }
  // (K) the diagonal of U, columns in the order of U. Waits for the stream.
  std::vector<double> diagonal(size_t i, cudaStream_t stream) const;

 private:
  std::vector<FactorItem> items_;
  int64_t padded_columns_;
  std::vector<CholeskyJob> jobs_;
  std::vector<double> dampings_;
  std::vector<double*> hessians_;  // packed
  std::vector<int32_t*> orders_;
  CholeskyJob* device_jobs_;
  int32_t* failed_;
};

}  // namespace thimble
