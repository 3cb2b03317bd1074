// method.h: what a method of quantization is: a strategy over one checkpoint, used for one budget after another.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "gptq/slope/matrix_loss.h"
#include "gptq/slope/slope_solver.h"
#include "gptq/statistics/stored_statistics.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/encoder.h"
#include "quantizer/methods/layer_solver.h"
#include "runtime/device/device.h"
#include "runtime/ops/token_sequences.h"

namespace thimble {

// What a method works with.
struct MethodWork {
  OpenedCheckpoint& source;
  const std::map<std::string, TensorSummary>& summaries;
  std::vector<std::string> layers;  // that have Hessians, or will have
  const QuantizedModel& header;     // config, provenance and layout, no tensors yet
  const Device& device;
  StageTimes& times;
  Progress& progress;
  LayerSolver& solver;
  const SharedWork& shared;
  Encoder& encoder;
  uint64_t key;  // hash of the checkpoint and what was collected from it
  // Empty before anything is collected.
  const StoredStatistics& statistics;
  const std::map<std::string, MatrixLoss>& losses;
  const TokenSequences& tokens;
  const TokenSequences& at_home;  // DistillInput
};

struct LayerOutcome {
  std::string name, precision;
  double sensitivity = 0;                   // of method slope: the predicted loss
  std::optional<double> predicted_loss;     // unit of matrix_loss.h
  std::optional<double> output_fisher;      // mean over the outputs
  std::optional<GptqReport> report;         // of the methods trace and nvfp4
  std::optional<SlopeReport> slope_report;  // of method slope
};

// An artifact of a whole solve on the way of a search.
struct EncodedPoint {
  double log2_c = 0;
  uint64_t artifact_bytes = 0;

  friend auto members(EncodedPoint& point) { return std::tie(point.log2_c, point.artifact_bytes); }
};

// How far distillation went (slope/distill.h).
struct DistillReport {
  int64_t steps = 0, sequences = 0, held_out = 0;
  double data_share = 0, temperature = 1;  // DivergenceOptions
  // Mean divergence from what is to be predicted, in nats per token on the sequences held out, of the models as stored.
  double divergence_before = 0, divergence_after = 0;
  bool is_kept = false;  // the tuned model is, for it is closer to the original

  // By more than what so few sequences say by chance.
  bool is_closer() const { return divergence_after < (1 - kLeastGain) * divergence_before; }
  static constexpr double kLeastGain = 0.01;
};

// How far learning of codes went (slope/learn_codes.h): divergences are of models that fit the limit alike.
struct LearnReport : DistillReport {
  double changed_codes = 0;  // share of all codes of matrices
  double rate_weight = 0;    // what a bit weighed in their paths (CodeLearner::find_path())

  // Of the model as it is from then on.
  double divergence() const { return is_kept ? divergence_after : divergence_before; }
};

// What a method tells of a fit, each of its own.
struct FitReport {
  int64_t high_count = 0, pruned_codes = 0, encodes = 0;
  double log2_c = 0;                     // method slope
  std::vector<EncodedPoint> encoded;     // method slope
  std::optional<DistillReport> distill;  // method slope
  std::optional<LearnReport> learning;   // method slope
  std::vector<LayerOutcome> layers;      // those with a Hessian, most sensitive first
  std::string fill_reason;               // why less than all of the limit is used, where the fit knows it

  bool is_tuned() const { return (distill && distill->is_kept) || (learning && learning->is_kept); }
};

struct Fitted {
  QuantizedModel model;
  ByteVector artifact;
  FitReport report;
};

class Method {
 public:
  virtual ~Method() = default;

  // What an artifact says it was made with, besides calibration.
  virtual Json provenance() const = 0;
  // Before anything is collected: a CheckError when what needs no solving exceeds the limit alone.
  virtual void check_lower_bound(std::optional<uint64_t> limit_bytes, const MethodWork& work) = 0;
  // An artifact of at most that many bytes, or a CheckError that says what is the least. Collective: every rank calls
  // it, and gets the same.
  virtual Fitted fit(std::optional<uint64_t> limit_bytes, const MethodWork& work) = 0;
  // Why less than all of the limit is used, where the fit has not said it.
  virtual std::string fill_reason() const = 0;
};

}  // namespace thimble
