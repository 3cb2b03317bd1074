// run_plan.cpp: see run_plan.h. Names of steps are those that the code below gives to Progress::begin().
#include "quantizer/pipeline/run_plan.h"

namespace thimble {
namespace {

// What tells most comes first: of several kinds, the line of a stage counts two.
const std::vector<std::string> kSearchSteps = {
    "solving layers", "packing",   "looking at layers",   "reading inputs",   "learning codes",
    "distilling",     "comparing", "reading calibration", "filling the limit"};
// Of one budget.
constexpr int64_t kSlopeSearchSteps = 50, kTraceSearchSteps = 16, kNvfp4Steps = 2;

int64_t search_steps(MethodKind method) {
  switch (method) {
    case MethodKind::kSlope: return kSlopeSearchSteps;
    case MethodKind::kTrace: return kTraceSearchSteps;
    case MethodKind::kNvfp4: break;
  }
  return kNvfp4Steps;
}

// What comes before the first solution.
std::vector<PlannedStage> statistics_plan(const QuantizeRequest& request) {
  std::vector<PlannedStage> stages = {{"checking the budget", 1, {"packing"}, 1}};
  if (!request.hessians.empty()) return stages;
  if (!request.given_text.is_given()) {
    const auto temperatures = static_cast<int64_t>(request.temperatures.size());
    stages.push_back({"writing calibration text", 30, {"generating calibration"}, temperatures});
  }
  if (request.check_finite) stages.push_back({"checking activations", 10, {"checking activations"}, 1});
  stages.push_back({"collecting statistics",
                    25,
                    {"collecting Hessians", "collecting gradients", "collecting Hessians and gradients"},
                    1});
  return stages;
}

std::vector<std::string> with(std::vector<std::string> steps, const std::vector<std::string>& more) {
  steps.insert(steps.end(), more.begin(), more.end());
  return steps;
}

const std::vector<std::string> kScoringSteps = {"evaluate"};
const std::vector<std::string> kLossSteps = {"eigenvalues of Hessians", "measuring losses"};

}  // namespace

std::vector<PlannedStage> quantize_plan(const QuantizeRequest& request, bool has_scoring) {
  std::vector<PlannedStage> stages = statistics_plan(request);
  // Gaps are measured while the search goes on.
  const bool measures_gaps = request.slope_target.bpb_gap.has_value();
  stages.push_back({"searching", measures_gaps ? 90.0 : 40.0,
                    measures_gaps ? with(kSearchSteps, kScoringSteps) : kSearchSteps, search_steps(request.method)});
  if (request.rate_bound || request.predicts_loss) stages.push_back({"predicting losses", 2, kLossSteps, 2});
  if (has_scoring) stages.push_back({"scoring", 20, kScoringSteps, 2});
  return stages;
}

std::vector<PlannedStage> sweep_plan(const QuantizeRequest& base, size_t points) {
  std::vector<PlannedStage> stages = {{"scoring the original", 10, kScoringSteps, 1}};
  for (PlannedStage& stage : statistics_plan(base)) stages.push_back(std::move(stage));
  const auto count = static_cast<int64_t>(points);
  stages.push_back({"fitting and scoring", 25.0 * static_cast<double>(points),
                    with(with(kSearchSteps, kScoringSteps), kLossSteps), count * (kSlopeSearchSteps + 1)});
  return stages;
}

std::vector<PlannedStage> eval_plan(size_t models, bool with_divergence) {
  std::vector<std::string> steps = with(kScoringSteps, {"checking activations"});
  // Models take turns: each is scored, and then compared with the first.
  if (with_divergence) steps.push_back("divergence");
  const auto count = static_cast<int64_t>(models);
  return {{"scoring", 1, steps, with_divergence ? 2 * count - 1 : count}};
}

std::vector<PlannedStage> audit_plan() { return {{"scoring", 3, kScoringSteps, 1}, {"auditing", 1, {"audit"}, 1}}; }

}  // namespace thimble
