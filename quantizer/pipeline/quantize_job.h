// quantize_job.h: the whole pipeline of `thimble quantize`: checkpoint in, artifact under a budget out.
//
//   open -> lower bound -> calibration tokens -> statistics -> the method's fit -> decode and compare -> write
//
// Every finished step is kept in the work folder, so that a killed run resumes and gives the same bytes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "gptq/statistics/fisher.h"
#include "packer/artifact.h"
#include "quantizer/console/console.h"
#include "quantizer/methods/method.h"
#include "quantizer/methods/work_folder.h"
#include "quantizer/pipeline/calibration.h"
#include "quantizer/pipeline/model_rate.h"
#include "runtime/base/memory_plan.h"

namespace thimble {

struct QuantizeOutcome : FitReport {
  int64_t parameters = 0;
  uint64_t original_bytes = 0, artifact_bytes = 0;
  // Share of the budget that artifact and code take; without one, of the bytes that --bits-per-weight comes to. Where
  // that is less than kFill, fill_reason says why.
  std::optional<double> fill;
  std::map<std::string, int64_t> precisions;  // how many tensors have each: "trellis256", "int5", "nvfp4", "F16"
  std::vector<MemoryPlan> memory_plans;       // of all steps, on a CUDA device
  std::string work_note;                      // of QuantizeJob
  LossStatistics loss;                        // empty unless collected or in the file of Hessians
  ModelRate rate;                             // with rate_bound or where losses are predicted
  ArtifactSummary stored;                     // what the artifact holds
};

// A checkpoint and what fitting it into a budget needs, collected once and used for one budget and method after
// another. All ranks make the same calls.
class QuantizeJob {
 public:
  // `request` says how to calibrate; all arguments must outlive the job.
  QuantizeJob(const QuantizeRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
              Console& console);

  OpenedCheckpoint& source() const { return source_; }
  int64_t parameters() const;
  uint64_t key() const { return key_; }  // hash of checkpoint, config, program and arithmetic

  // Before collect(): a CheckError when what needs no solving exceeds the budget alone.
  void check_lower_bound(const QuantizeRequest& request);

  // Calibration text and Hessians.
  void collect();

  // Writes the artifact atomically. `request` is the job's own but for output, budget, method and what that decides;
  // requests of the same method differ in output and budget only. Throws CheckError (exit 3) when the budget cannot be
  // met, on all ranks. Rank 0 gets the outcome and owns all files that are written; the other ranks go on once they
  // are, and get an empty one.
  QuantizeOutcome fit(const QuantizeRequest& request);

  // Deletes the files of finished steps.
  void remove_work() const { work_->remove(); }
  std::string work_note() const { return work_ ? work_->note() : ""; }

 private:
  Method& method_of(const QuantizeRequest& request);
  // `solver`: with Hessians or, before there are any, without.
  MethodWork work_of(const QuantizedModel& header, LayerSolver& solver, const SharedWork& shared, Encoder& encoder);
  // Checks, writes and describes what was fitted.
  QuantizeOutcome finish(const QuantizeRequest& request, const Method& method, Fitted fitted);

  const QuantizeRequest& request_;
  Ranks& ranks_;
  StageTimes& times_;
  Console& console_;
  OpenedCheckpoint& source_;
  std::map<std::string, TensorSummary> summaries_;
  uint64_t key_;
  std::vector<std::string> layers_;  // that have Hessians, or will have
  // From collect() on.
  std::vector<MemoryPlan> memory_plans_;
  std::optional<WorkFolder> work_;
  KeyedStatistics collected_;
  std::optional<SharedWork> shared_;
  std::optional<Encoder> encoder_;
  std::optional<LayerSolver> solver_;
  std::map<std::string, MatrixLoss> losses_;
  std::map<MethodKind, std::unique_ptr<Method>> methods_;
  RateMeter meter_{source_.parameters(), losses_, request_.device};
};

// One fit: the whole of `thimble quantize` but for its report. Errors and ranks as above.
QuantizeOutcome run_quantize(const QuantizeRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
                             Console& console);

}  // namespace thimble
