// quantize_job.h: the whole pipeline of `thimble quantize`: checkpoint in, artifact under a budget out.
//
//   open -> calibration tokens -> Hessians -> sensitivities -> plan -> solve -> encode -> decode and compare -> write
//
// Method `trace` plans bits per layer (plan_search.h); `slope` plans steps per weight (slope_search.h).
// Every finished step is kept in the work folder, so that a killed run resumes and gives the same bytes.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gptq/fisher.h"
#include "packer/artifact.h"
#include "quantizer/console.h"
#include "quantizer/distill.h"
#include "quantizer/plan_search.h"
#include "quantizer/ranks.h"
#include "quantizer/slope_search.h"
#include "runtime/device.h"
#include "runtime/generate.h"
#include "runtime/memory_plan.h"

namespace thimble {

enum class Method { kSlope, kTrace };

struct QuantizeRequest {
  std::string checkpoint, config, output;
  Device device;
  std::optional<uint64_t> budget_bytes;  // for artifact and code together
  uint64_t code_bytes = 0;
  Method method = Method::kSlope;
  bool high_is_auto = false;  // trace
  TracePlanOptions plan;      // trace, and which tensors both methods leave alone
  SlopeOptions slope;
  DistillOptions distill;                             // slope
  SlopeTarget slope_target;                           // its limit follows from the budget
  std::function<double(const Model&)> bits_per_byte;  // for a target that is a gap
  CalibrationOptions calibration;
  std::string calibration_tokens;  // file; empty: the model generates them
  std::string hessians;            // file; empty: collected
  std::string save_hessians, save_calibration;
  bool fisher = false;  // also collect LossStatistics; of the two methods only `slope` uses them
  EncodeOptions encode;
  std::string work_folder;  // empty: nothing is kept
  bool keep_work = false;
};

struct LayerOutcome {
  std::string name, precision;
  double sensitivity = 0;
  std::optional<double> output_fisher;      // mean over the outputs
  std::optional<GptqReport> report;         // of method trace
  std::optional<SlopeReport> slope_report;  // of method slope
};

struct QuantizeOutcome {
  int64_t parameters = 0;
  uint64_t original_bytes = 0, artifact_bytes = 0;
  int64_t high_count = 0, pruned_codes = 0, encodes = 0;
  double log2_c = 0;                     // method slope
  std::optional<DistillReport> distill;  // method slope
  std::vector<MemoryPlan> memory_plans;  // of generation and Hessians, on a CUDA device
  std::vector<LayerOutcome> layers;      // those with a Hessian, most sensitive first
  LossStatistics loss;                   // empty unless collected or in the file of Hessians
};

// Writes the artifact atomically. CheckError (exit 3) when the budget cannot be met. Rank 0 gets the outcome and owns
// all files that are written; the other ranks help until the artifact is there, and get an empty one.
QuantizeOutcome run_quantize(const QuantizeRequest& request, Ranks& ranks, StageTimes& times, Console& console);

}  // namespace thimble
