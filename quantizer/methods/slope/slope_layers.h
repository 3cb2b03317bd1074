// slope_layers.h: the matrices of a model that the method `slope` quantizes, made ready once and solved for one c after
// another: their losses and a model of their size. Hessians are factored for every c: their damping follows it.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gptq/factor/input_pairs.h"
#include "gptq/slope/matrix_loss.h"
#include "gptq/slope/rate_model.h"
#include "gptq/slope/slope_solver.h"
#include "gptq/slope/step_plan.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/shared_work.h"
#include "runtime/base/json.h"
#include "runtime/base/progress.h"
#include "runtime/device/device.h"
#include "runtime/tensor/tensor.h"

namespace thimble {

struct SlopeOptions {
  int trellis_bits = 8;    // of Trellis
  double rate_weight = 0;  // squared levels that a bit is worth while rounding
  double damping = 0.03;   // of Hessians, relative to their mean diagonal
  ColumnOrder column_order = ColumnOrder::kDescending;
  double cross_term = 0;       // how far weights make up for what earlier layers did to their input, 0 to 1
  double cross_damping = 0.5;  // of Hessians there, relative to their mean diagonal
  double shrinkage = 4;        // strength of step_plan.h's shrink(), at most
  double row_power = 0.5;      // of step_plan.h's level_row_weights()
};

// All of them: what an artifact says it was made with, and what tells sweeps apart.
Json to_json(const SlopeOptions& options);

// Of the bits that a weight is going to have, those that shrinkage alone may leave it: with much more, files do not get
// smaller with c any more (docs/measurements/2026-11-26-low-rates.md).
constexpr double kShrunkShare = 0.4;

// With steps so long no artifact changes any more.
constexpr double kHighestLog2C = 60;

// How the steps of one matrix follow from c.
struct SlopeSetting {
  double log2_c = 0;
  double shrinkage = 0;    // of SlopeOptions, or less
  double rate_weight = 0;  // added to that of SlopeOptions: the larger, the fewer bits with the same steps
  bool is_flat = false;    // one step for the whole matrix, the (geometric) mean of its steps: takes next to no bytes
  bool operator==(const SlopeSetting&) const = default;
};

using SlopeSettings = std::map<std::string, SlopeSetting>;  // by matrix

struct SlopeMatrix {
  QuantizedTensor tensor;
  SlopeReport report;

  friend auto members(SlopeMatrix& matrix) { return std::tie(matrix.tensor, matrix.report); }
};

// Takes every matrix that a device has solved while it solves others, from any thread. Not called for what was kept,
// nor where all threads solve.
using OnSolved = std::function<void(const SlopeMatrix&)>;

// The matrix (R, K) of the fewest bytes: codes of 0, and steps of 0 too, which mean nothing then.
QuantizedTensor zero_matrix(const std::string& name, const Shape& shape, int trellis_bits);

// What a matrix (R, K) takes of the host's memory while it is solved there, besides its codes: its factor while there
// is Hessian too, then with weights in float32 and segments of them in float64.
uint64_t solving_bytes(int64_t rows, int64_t columns, bool has_hessian);
// Of each weight of the model meanwhile: its codes in the best solution so far and in the one that is made, and half a
// byte or so in the packed sections of each.
constexpr uint64_t kSolvedWeightBytes = 3;

class SlopeLayers {
 public:
  static constexpr double kMostBits = 16;

  // Of `tensors`, those named in `losses`: matrices with finite values, else Errors (bad input); their bytes must
  // outlive this, which converts them matrix by matrix as they are needed. Those with Hessians are solved on `device`.
  // All solving is shared work: collective, and kept by `key`, which hashes where tensors and Hessians came from.
  // `work` must outlive this.
  SlopeLayers(const TensorMap& tensors, std::map<std::string, MatrixLoss> losses, const SlopeOptions& options,
              const Device& device, const SharedWork& work, uint64_t key, Progress& progress);

  // Those named in `settings`, each by its own; ascending by name. A matrix whose codes are all 0 has steps of 0,
  // whatever c is: they mean nothing.
  std::vector<SlopeMatrix> solve(const SlopeSettings& settings, Progress& progress,
                                 const OnSolved& on_solved = {}) const;
  // The same for matrices that read one input, by the Hessian of its pair and with options().cross_term of what makes
  // up for its drift. Reports are of errors relative to the shifted weights. `collect` is called, on all ranks, where
  // not all are kept; `key` hashes what pairs depend on besides the options and what was asked for here.
  std::vector<SlopeMatrix> solve_shifted(std::span<const std::string> names, const SlopeSetting& setting, uint64_t key,
                                         const std::function<StoredPair()>& collect, StageTimes& times,
                                         Progress& progress, const OnSolved& on_solved) const;

  // What solve() gives where steps are so long that all codes are 0.
  std::vector<QuantizedTensor> zeros() const;
  // The same codes with the steps of columns without shrinkage: what nearly every artifact stores beside its codes.
  std::vector<QuantizedTensor> zeros_with_columns() const;

  const SharedWork& work() const { return work_; }
  // Hash of all that solutions depend on besides their settings.
  uint64_t key() const;
  const SlopeOptions& options() const { return options_; }
  const SizeModel& size_model() const { return size_model_; }
  // That of every matrix where one c is for all: options().shrinkage, but less where codes take so few bits that steps
  // kept below the weights leave nothing to save (kShrunkShare).
  SlopeSetting setting_at(double log2_c) const;
  // About kMostBits bits for each weight. No matrix is solved with shorter steps than give it these: they would tell
  // nothing about its weights that the checkpoint knew.
  double finest_log2_c() const;
  std::vector<std::string> names() const;
  int64_t weights() const;
  // Name and number of weights of each.
  std::vector<std::pair<std::string, int64_t>> sizes() const;
  double mean_row_weight(const std::string& name) const;

 private:
  // Float32 values, which lie in the checkpoint or are a copy's.
  struct LayerWeights {
    StoredMatrix matrix;
    ConstMatrixView view() const { return matrix.view().float32(); }
  };
  struct Layer {
    std::string name;
    uint64_t key = 0;  // of what solutions depend on besides the setting
    TensorView tensor;
    std::optional<StoredMatrix> shifted;  // what stands in for the tensor's weights
    MatrixLoss loss;                      // with row weights levelled, as steps follow them
    std::vector<double> row_weights;      // (R) as they were: what reports weigh errors by
    std::vector<double> row_mean_squares;
    WeightScales scales;
    StepShape steps;  // without shrinkage
    double finest_log2_c = 0;

    int64_t rows() const { return tensor.shape[0]; }
    int64_t cols() const { return tensor.shape[1]; }
    StoredMatrix stored() const { return shifted ? *shifted : StoredMatrix(tensor, rows(), cols(), nullptr); }
    LayerWeights weights() const;
  };

  void look_at_sizes(Progress& progress);
  // Of each layer's Hessian, on `device`; empty without one.
  std::vector<std::vector<double>> factor_diagonals(std::span<const Layer* const> layers) const;
  // A layer and what its setting makes of it.
  struct Task {
    const Layer* layer;
    SlopeSetting setting;
    double damping;                   // of the Hessian
    std::vector<double> row_weights;  // (R) shrunk
  };
  Task task(const Layer& layer, SlopeSetting setting) const;
  SlopeGrid grid(const Task& task, const std::vector<double>& upper_diagonal) const;
  SlopeResult solve_on_cpu(const Task& task) const;
  // Takes the solution of task i; from any thread.
  using Take = std::function<void(size_t, SlopeResult)>;
  // Those of `tasks` with numbers in `chosen`, which all have Hessians.
  void solve_on_cuda(std::span<const Task> tasks, std::span<const size_t> chosen, int ordinal, const Take& take) const;
  // The tasks are best in descending order of work.
  void solve_here(std::span<const Task> tasks, const Take& take) const;
  // Gives a solution of one of them as a piece of the work, and shows it to who wants to see it.
  void give(const Task& task, SlopeResult result, size_t piece, const SharedWork::Give<SlopeMatrix>& take,
            const OnSolved& on_solved) const;
  // A layer to solve and how, wherever that is done.
  struct Wanted {
    const Layer* layer;
    SlopeSetting setting;
  };
  // Gives this rank's share, by numbers of what is wanted.
  using Compute = std::function<void(std::span<const size_t> mine, const SharedWork::Give<SlopeMatrix>& give)>;
  std::vector<SlopeMatrix> share(std::span<const Wanted> wanted, uint64_t key, const Compute& compute,
                                 Progress& progress) const;
  // Weights that make up for the drift of what these read.
  std::vector<Matrix> shifted_weights(std::span<const std::string> names, const StoredPair& pair) const;
  // Of the host's memory: what a layer takes while it is solved there, and what there is for layers in flight.
  static uint64_t work_bytes(const Layer& layer);
  uint64_t working_memory_bytes() const;
  // Multiplications that a layer takes, for the balance of work.
  static int64_t cost(const Layer& layer);
  const Layer& layer(const std::string& name) const;

  SlopeOptions options_;
  Device device_;
  const SharedWork& work_;
  std::vector<Layer> layers_;
  SizeModel size_model_;
};

}  // namespace thimble
