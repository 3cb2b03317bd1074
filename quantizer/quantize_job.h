// quantize_job.h: the whole pipeline of `thimble quantize`: checkpoint in, artifact under a budget out.
//
//   open -> calibration tokens -> Hessians -> sensitivities -> plan -> solve -> encode -> decode and compare -> write
//
// Every finished step is kept in the work folder, so that a killed run resumes and gives the same bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "packer/artifact.h"
#include "quantizer/console.h"
#include "quantizer/plan_search.h"
#include "quantizer/ranks.h"
#include "runtime/device.h"
#include "runtime/generate.h"
#include "runtime/memory_plan.h"

namespace thimble {

struct QuantizeRequest {
  std::string checkpoint, config, output;
  Device device;
  std::optional<uint64_t> budget_bytes;  // for artifact and code together
  uint64_t code_bytes = 0;
  bool high_is_auto = false;
  TracePlanOptions plan;
  CalibrationOptions calibration;
  std::string calibration_tokens;  // file; empty: the model generates them
  std::string hessians;            // file; empty: collected
  std::string save_hessians, save_calibration;
  EncodeOptions encode;
  std::string work_folder;  // empty: nothing is kept
  bool keep_work = false;
};

struct LayerOutcome {
  std::string name, precision;
  double sensitivity = 0;
  std::optional<GptqReport> report;
};

struct QuantizeOutcome {
  int64_t parameters = 0;
  uint64_t original_bytes = 0, artifact_bytes = 0;
  int64_t high_count = 0, pruned_codes = 0, encodes = 0;
  std::vector<MemoryPlan> memory_plans;  // of generation and Hessians, on a CUDA device
  std::vector<LayerOutcome> layers;      // those with a Hessian, most sensitive first
};

// Writes the artifact atomically. CheckError (exit 3) when the budget cannot be met. Rank 0 gets the outcome and owns
// all files that are written; the other ranks help until the artifact is there, and get an empty one.
QuantizeOutcome run_quantize(const QuantizeRequest& request, Ranks& ranks, StageTimes& times, Console& console);

}  // namespace thimble
