// quantize_request.h: what a run of `thimble quantize` is asked for.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gptq/trace/plan.h"
#include "packer/artifact.h"
#include "quantizer/methods/effort.h"
#include "quantizer/methods/slope/distill.h"
#include "quantizer/methods/slope/slope_method.h"
#include "quantizer/methods/work_folder.h"
#include "quantizer/pipeline/given_text.h"
#include "runtime/device/device.h"
#include "runtime/families/model_weights.h"
#include "runtime/ops/generator.h"

namespace thimble {

enum class MethodKind { kSlope, kTrace, kNvfp4 };

struct QuantizeRequest {
  std::string checkpoint, config, output;
  Device device;
  std::optional<uint64_t> budget_bytes;  // for artifact and code together
  uint64_t code_bytes = 0;
  MethodKind method = MethodKind::kSlope;
  bool high_is_auto = false;  // trace
  TracePlanOptions plan;      // trace, and which tensors both methods leave alone
  SlopeOptions slope;
  std::optional<double> cross_term;    // becomes slope.cross_term; by default where it can be had
  std::optional<Effort> asked_effort;  // by default what suits the device: finish_options()
  Effort effort = Effort::kDefault;
  // Of method slope; what is not given follows from the effort.
  std::optional<int64_t> distill_steps, distill_batch, learn_steps, learn_batch;
  GainTunerOptions tuner;                       // steps and batch once these are known
  std::optional<double> data_share;             // of tuning and learning: DivergenceOptions; none: fitted_data_share()
  std::optional<double> target_temperature;     // likewise; none: fitted_temperature()
  CodeLearnerOptions codes;                     // of learning; steps and batch likewise
  bool learns_rows = false;                     // gains of rows with the codes
  int64_t cross_sequences = 0;                  // that cross terms read, at most
  std::optional<int64_t> statistics_sequences;  // the first, which they and statistics read, at most; none: all
  SlopeTarget slope_target;                     // its limit follows from the budget
  ModelScore bits_per_byte;                     // for a target that is a gap
  // Within which the model also writes, for fitted_temperature(), where its own text is longer and its rotary
  // embeddings are others there; 0: it does not.
  int64_t home_length = 0;
  CalibrationOptions calibration;            // but for the temperature:
  std::vector<double> temperatures = {0.8};  // one after another in turn, sequence by sequence
  GivenText given_text;                      // none: the model generates it
  OutsideModel outside;                      // of slope, with `hessians` of a model that others run
  std::string hessians;                      // file; empty: collected
  std::string save_hessians, save_calibration;
  bool fisher = false;        // also collect LossStatistics; of the two methods only `slope` uses them
  bool predicts_loss = true;  // of each matrix, for --json, pages and sweeps
  bool rate_bound = false;    // which takes that too
  bool check_finite = false;  // of the checkpoint, and of activations on the calibration tokens
  std::string report;         // a page about the run (report_page.h), which the command writes; empty: none
  EncodeOptions encode;
  std::string work_folder;  // empty: nothing is kept
  bool keep_work = false;
  WorkFolder::AfterPiece after_piece;  // for tests

  // Of the calibration sequences, the first ones, how many statistics read.
  int64_t statistics_count() const { return std::min(calibration.sequences, statistics_sequences.value_or(INT64_MAX)); }
};

}  // namespace thimble
