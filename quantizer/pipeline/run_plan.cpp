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

// Shares of a run that nothing is known of.
constexpr RunSeconds kUsualShares = {30, 25, 40, 20};
// A search for a gap scores what it finds; checking activations is part of what statistics do.
constexpr double kScoresOfSearch = 2.5, kCheckedShare = 0.4;

// What comes before the first solution.
std::vector<PlannedStage> statistics_plan(const QuantizeRequest& request, const RunSeconds& costs) {
  std::vector<PlannedStage> stages = {{"checking the budget", 1, {"packing"}, 1}};
  if (!request.hessians.empty()) return stages;
  if (!request.given_text.is_given()) {
    const auto temperatures = static_cast<int64_t>(request.temperatures.size());
    stages.push_back({"writing calibration text", costs.writing, {"generating calibration"}, temperatures});
  }
  if (request.check_finite)
    stages.push_back({"checking activations", kCheckedShare * costs.statistics, {"checking activations"}, 1});
  stages.push_back({"collecting statistics",
                    costs.statistics,
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

std::vector<PlannedStage> quantize_plan(const QuantizeRequest& request, bool has_scoring,
                                        const std::optional<RunSeconds>& expected) {
  const RunSeconds costs = expected.value_or(kUsualShares);
  std::vector<PlannedStage> stages = statistics_plan(request, costs);
  // Gaps are measured while the search goes on.
  const bool measures_gaps = request.slope_target.bpb_gap.has_value();
  const double measuring = measures_gaps ? kScoresOfSearch * costs.scoring : 0;
  stages.push_back({"searching", costs.searching + measuring,
                    measures_gaps ? with(kSearchSteps, kScoringSteps) : kSearchSteps, search_steps(request.method)});
  if (request.rate_bound || request.predicts_loss) stages.push_back({"predicting losses", 2, kLossSteps, 2});
  if (has_scoring) stages.push_back({"scoring", costs.scoring, kScoringSteps, 2});
  return stages;
}

std::vector<PlannedStage> sweep_plan(const QuantizeRequest& base, size_t points) {
  std::vector<PlannedStage> stages = {{"scoring the original", 10, kScoringSteps, 1}};
  for (PlannedStage& stage : statistics_plan(base, kUsualShares)) stages.push_back(std::move(stage));
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
