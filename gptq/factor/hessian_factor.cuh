// hessian_factor.cuh: factor_hessian() on the device, for many Hessians of equally padded size at once. The algorithm
// is that of hessian_factor.cpp: with J the reversal of rows or columns and J A J = L L^T, U = J L^-1 J. Matrices are
// padded to whole tiles by an identity, which changes nothing in the rest. K = columns of a Hessian, P = K rounded up
// to a multiple of kTile (f64_tile.cuh).
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "gptq/factor/f64_tile.cuh"
#include "gptq/factor/hessian_factor.h"
#include "gptq/statistics/device_arena.cuh"

namespace thimble {

// One Hessian as it is before the device has it. The job must outlive the item.
struct FactorItem {
  const FactorJob* job = nullptr;
  HessianFactor unfactored = {};  // with the damping to begin with
};

// Of each job. Throws as factor_hessian() does of a diagonal that is negative or not finite.
std::vector<FactorItem> factor_items(std::span<const FactorJob> jobs);

// A is not positive definite to working precision; H holds a value that is not finite.
enum FactorFailure : int32_t { kFactored = 0, kNotPositive = 1, kNotFinite = 2 };

// A Hessian and its factor in device memory.
struct DeviceFactor {
  double* hessian;       // K * (K + 1) / 2: lower triangle of H, packed row after row
  int32_t* order;        // (K) columns in the order of U
  int32_t columns;       // K
  int32_t live_columns;  // columns order[live_columns ...] are dead: a diagonal of 1, 0 beside it
  double added;          // to every diagonal element
  double* upper;         // (P, P) out: U, zeros below the diagonal, 1 on the padding's; before that, A and L
  double* inverse;       // (P, P) scratch: L^-1
  double* diagonal;      // (P) out: that of U; before that, what pivots must be above, for smaller ones are rounding
  int32_t* failed;       // out: a FactorFailure; then U is rubbish
};

// Enqueues the upload of a Hessian (K, K) to `packed`, its lower triangle row after row. Scratch: `staging`, of K * K
// float64 values, and `added`, of K. `failed`: becomes kNotFinite where H holds a value that is not finite.
void upload_hessian(const StoredHessian& hessian, double* staging, double* added, double* packed, int32_t* failed,
                    cudaStream_t stream);

class FactorBatch {
 public:
  // Takes its memory from the arena. The items must outlive it.
  FactorBatch(std::vector<const FactorItem*> items, int64_t padded_columns, Arena& arena);

  // Uploads and factors every Hessian, those that fail again with more damping, and waits. Each U depends on its own
  // Hessian only, bit for bit. `meanwhile` is called once when the device has begun.
  void factor(cudaStream_t stream, const std::function<void()>& meanwhile);

  int64_t padded_columns() const { return padded_columns_; }
  // Of the i-th Hessian.
  const DeviceFactor& operator[](size_t i) const { return factors_[i]; }
  // The factor as the host knows it: with the damping that was used, `upper` empty.
  HessianFactor on_host(size_t i) const;
  // (K) the diagonal of U, by column.
  std::vector<double> upper_diagonal(size_t i) const;

 private:
  std::vector<const FactorItem*> items_;
  int64_t padded_columns_;
  std::vector<DeviceFactor> factors_;
  std::vector<double> dampings_;
  std::vector<double> diagonals_;  // (factors, P)
  // In device memory:
  DeviceFactor* pending_;
  double* device_diagonals_;
  int32_t* failed_;
};

}  // namespace thimble
