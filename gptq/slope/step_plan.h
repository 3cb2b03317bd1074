// step_plan.h: the step of every weight of a matrix, by the method `slope`: an error of the same size in the loss for
// every weight of the model, so that no bit could be moved from one weight to another with a gain (WaterSIC, arXiv
// 2603.04956):
//   step(r, k) = c * U_kk / sqrt(row weight r),   (H + damping)^-1 = U^T U
// with one c for the whole model, the only knob. At high rate each weight then costs c^2 / 24 nats.
// In: MatrixLoss, the diagonal of the Hessian's factor, c.  Out: steps in units of runtime/codes/quantized_model.h.
// R = rows, K = columns.
#pragma once

#include <cstdint>
#include <vector>

#include "gptq/slope/matrix_loss.h"

namespace thimble {

// log2 of the step at c = 1, row plus column.
struct StepShape {
  std::vector<double> rows;     // (R)
  std::vector<double> columns;  // (K) around 0, so that changing c changes rows only
};

// `row_weights`: (R), of the loss or shrunk. `upper_diagonal`: (K) U_kk by column, of loss.hessian's factor; none where
// there is no Hessian: then U_kk = diagonal[k]^(-1/2).
StepShape step_shape(const MatrixLoss& loss, const std::vector<double>& row_weights,
                     const std::vector<double>& upper_diagonal);

// Each weight to this power, times the mean to the rest: 1 leaves them, 0 gives all rows the mean. Between the two is
// best: what single rows were seen to matter is partly chance, and partly the calibration text's.
std::vector<double> level_row_weights(std::vector<double> row_weights, double power);

// Where errors of a full step would be larger than the weights themselves, weights are not worth a bit (reverse
// water-filling, Cover and Thomas, section 10.3.3): there steps stop growing. Longer ones would cost more than is
// predicted, by errors beyond the range of a quadratic loss, and by errors that GPTQ passes on until they cost bits of
// their own. With the distortion of one weight, c^2 / 12, over what losing all weights would cost,
//   damping (relative to mean(diag H)) = strength * c^2 / 12 / (mean row weight * mean square of all weights)
//   row weight r                      += strength * c^2 / 12 / (mean(diag H) * mean square of row r)
struct Shrinkage {
  double damping = 0;
  std::vector<double> row_weights;  // (R)
};

// `row_mean_squares`: (R) of the weights.
Shrinkage shrink(const MatrixLoss& loss, const std::vector<double>& row_mean_squares, double log2_c, double strength);

// The strength with which rate_model.h's SizeModel has `bits` for a weight however large c is: such steps come up to
// sqrt(12 / strength) deviations. 0 for 0.
double shrinkage_for(double bits);

struct Steps {
  std::vector<int16_t> rows, columns;  // (R), (K): log2 of half a step in 1/64 octave (the distance of two levels)
};

// Rounded to kStepGrid. What rows may not hold by the format, columns take over; beyond both, steps are clamped.
Steps round_steps(const StepShape& shape, double log2_c);

// Steps are stored in eighths of an octave: finer ones take more bytes than they save.
constexpr int kStepGrid = 8;

}  // namespace thimble
