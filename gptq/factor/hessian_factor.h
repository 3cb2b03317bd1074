// hessian_factor.h: a layer's Hessian made ready for the solver: dead columns, column order, damping, Cholesky.
// In: H (K, K).  Out: HessianFactor.  Layers that share a Hessian share its factor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "gptq/statistics/stored_statistics.h"
#include "gptq/statistics/symmetric_matrix.h"
#include "runtime/device/device.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

// In which order columns are solved, by their diagonal; ties by index. Descending is what the GPTQ program calls
// act-order: columns that matter most have the most others left to take up their errors. Dead columns are always last.
enum class ColumnOrder { kDescending, kAscending, kNatural };
constexpr std::array<const char*, 3> kColumnOrders = {"descending", "ascending", "natural"};
constexpr const char* column_order_name(ColumnOrder order) { return kColumnOrders[static_cast<size_t>(order)]; }

// K = input columns
struct HessianFactor {
  std::vector<int64_t> order;         // (K) order[i] is the column solved i-th
  MatrixF64 upper;                    // (K, K) U in that order: (H + damping * mean(diag) * I)^-1 = U^T U
  double damping = 0;                 // relative to mean(diag), as used
  std::vector<int64_t> dead_columns;  // ascending; diagonal exactly 0: no calibration token ever activated them

  // Weights (R, K) in float64, columns in the order they are solved; dead columns are 0.
  MatrixF64 ordered(ConstMatrixView weights) const;
  // (K) of U, by column. `in_order`: the same in the order of U.
  std::vector<double> upper_diagonal() const;
  std::vector<double> by_column(const std::vector<double>& in_order) const;
};

// Damping of the method `trace` before factorisation, again relative to the mean of the (damped) diagonal, and what
// both dampings amount to on the Hessian as collected.
constexpr double kSolverDamping = 0.01;
constexpr double kTraceDamping = (1 + kCollectionDamping) * (1 + kSolverDamping) - 1;

// GPTQ (arXiv 2210.17323), section 3.3, step 3. `damping` >= 0 is relative to mean(diag). When the factorisation fails,
// it is multiplied by 10 (0 becomes 1e-6) until it succeeds; the factor tells the value used.
// A dead column is set apart with a diagonal of 1; the solver gives its weights the code 0.
// H with values that are not finite, a negative diagonal, or not positive definite at kMaxDampingAttempts dampings, is
// an Error (bad input).
HessianFactor factor_hessian(const SymmetricMatrix& hessian, double damping, const std::string& layer,
                             ColumnOrder order = ColumnOrder::kDescending);

// upper_diagonal() of that factor, to the bit; nothing is inverted for it.
std::vector<double> factor_diagonal(const SymmetricMatrix& hessian, double damping, const std::string& layer,
                                    ColumnOrder order = ColumnOrder::kDescending);

// The arguments of factor_hessian(), where many are factored together.
struct FactorJob {
  std::string name;  // of the layer
  const StoredHessian* hessian = nullptr;
  double damping = 0;
  ColumnOrder order = ColumnOrder::kDescending;
};

// The same of all jobs on a device, near to it.
std::vector<std::vector<double>> factor_diagonals_cuda(std::span<const FactorJob> jobs, const CudaPlace& place);

constexpr int kMaxDampingAttempts = 6;

// U (K, K), upper triangular with zeros below, such that A^-1 = U^T U: "Cholesky(H^-1)^T" of GPTQ (arXiv 2210.17323,
// algorithm 1). Reads the upper triangle of A (K, K), symmetric and finite. The same for any thread count.
// Nothing when A is not positive definite to working precision.
// A^-1 is never formed. With J the reversal of rows or columns and J A J = L L^T, U = J L^-1 J.
std::optional<MatrixF64> inverse_upper_cholesky(MatrixF64 a);

// The most that factor_hessian() takes, with H, of `columns` columns: (K, K) in float64 and H's triangle.
constexpr uint64_t factor_bytes(int64_t columns) {
  return static_cast<uint64_t>(columns) * static_cast<uint64_t>(columns) * (sizeof(double) + sizeof(double) / 2);
}

// The steps of factor_hessian() that do not depend on who factors. The first checks H beside its diagonal; the second
// checks that, (K), and fills everything but `upper`; the third gives the damping to try after failure number `attempt`
// (1, 2, ...), or throws.
void require_finite_hessian(const SymmetricMatrix& hessian, const std::string& layer);
HessianFactor unfactored_hessian(const std::vector<double>& diagonal, double damping, const std::string& layer,
                                 ColumnOrder order = ColumnOrder::kDescending);
double raised_damping(double damping, int attempt, const std::string& layer);

}  // namespace thimble
