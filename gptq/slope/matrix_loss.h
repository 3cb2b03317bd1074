// matrix_loss.h: what errors in a matrix cost, in nats per token: the sensitivities of the method `slope`.
//   loss(E) = 1/2 sum over rows r of row_weights[r] * e_r H e_r^T,   e_r = row r of the error E = W' - W
// H is the second moment of what multiplies the matrix, the row weight the mean squared gradient at the output it makes
// (output Fisher): the Gauss-Newton approximation with Kronecker factors (K-FAC, arXiv 1503.05671).
// In: calibration statistics.  Out: MatrixLoss of every matrix they say something about, and what its errors cost.
// R = rows, K = columns.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gptq/statistics/stored_statistics.h"
#include "runtime/device/device.h"
#include "runtime/tensor/matrix.h"
#include "runtime/tensor/stored_matrix.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

struct MatrixLoss {
  // (K, K), shared by layers that read the same input, loaded by those who work with it; null where H is diagonal.
  std::shared_ptr<const StoredHessian> hessian;
  std::vector<double> diagonal;     // (K) of H; all above 0 where `hessian` is null
  std::vector<double> row_weights;  // (R) above 0, within kRowWeightRange of their mean
};

// Fishers are estimates: no row is trusted to matter more, or less, than its matrix's mean by this factor.
constexpr double kRowWeightRange = 256;

// 0 of nothing.
double mean_of(const std::vector<double>& values);

// (R) of the weights (R, K); 0 where K is 0.
std::vector<double> row_mean_squares(ConstMatrixView weights);

// - Layers with a Hessian: their output Fisher, or 1 for all rows of all layers where none was collected.
// - Tables: H is diagonal, the lookup Fisher; the weight of a row is how often it is looked up (plus one, per token).
// - A table that is the output head too: the mean over rows of both, and each row's own ratio to it as its weight.
// `shapes`: of the tensors by name; statistics of others are passed over.
std::map<std::string, MatrixLoss> matrix_losses(const StoredStatistics& statistics,
                                                const std::map<std::string, Shape>& shapes);

// What the errors of a quantized matrix cost: loss(quantized - weights), of matrices (R, K), never below 0. Nats per
// token where the row weights are an output Fisher. H is the one collected, not the damped one that solvers work with.
// The same for any thread count.
double predicted_loss(const MatrixLoss& loss, const StoredMatrixView& weights, const StoredMatrixView& quantized);

// The same on a device, matrix after matrix, with sums in another order.
class LossMeter {
 public:
  virtual ~LossMeter() = default;
  // Nothing where the device has no room for H.
  virtual std::optional<double> measure(const MatrixLoss& loss, const StoredMatrixView& weights,
                                        const StoredMatrixView& quantized) = 0;
};
std::unique_ptr<LossMeter> make_cuda_loss_meter(const CudaPlace& place);

// Half of the sums over rows, weighted.
double total_loss(const std::vector<double>& row_sums, const MatrixLoss& loss);

}  // namespace thimble
