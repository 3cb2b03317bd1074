// plan_search.cpp: bisection over real artifacts.
#include "quantizer/methods/trace/plan_search.h"

#include <algorithm>

#include "gptq/trace/plan.h"
#include "runtime/base/count_text.h"

namespace thimble {
namespace {

constexpr int kMaxPruneEncodes = 12;

// Layers that the plan solves by GPTQ: the most that can be of high precision.
int64_t count_solved(const Plan& plan) {
  return std::ranges::count_if(plan, [](const auto& item) { return item.second.needs_hessian(); });
}

}  // namespace

PlanSearch::PlanSearch(QuantizedModel header, const std::map<std::string, TensorSummary>& tensors, LayerSolver& solver,
                       const SearchOptions& options, Encoder& encoder, StageTimes& times, Progress& progress)
    : header_(std::move(header)),
      tensors_(tensors),
      solver_(solver),
      options_(options),
      encoder_(encoder),
      times_(times),
      progress_(progress) {}

bool PlanSearch::fits(const SearchResult& result) const {
  return !options_.artifact_limit_bytes || result.artifact.size() <= *options_.artifact_limit_bytes;
}

SearchResult PlanSearch::encode(const Plan& plan, int64_t high_count, int64_t pruned_codes) {
  SearchResult result;
  result.plan = plan;
  result.high_count = high_count;
  result.model = header_;
  result.model.tensors = times_.time("solve", [&] { return solver_.solve(plan); });
  result.pruned_codes = prune_smallest(result.model, plan, pruned_codes);
  result.artifact = encoder_.artifact(result.model, options_.encode, progress_);
  result.encodes = ++encodes_;
  return result;
}

void PlanSearch::check_lower_bound(const std::vector<std::string>& layers) {
  if (!options_.artifact_limit_bytes) return;
  std::map<std::string, double> placeholder;
  for (const std::string& layer : layers) placeholder[layer] = 0;
  QuantizedModel fixed = header_;
  fixed.tensors = solver_.solve_without_hessians(make_trace_plan(tensors_, placeholder, options_.plan));
  uint64_t bytes = encoder_.artifact(fixed, options_.encode, progress_).size();
  if (bytes > *options_.artifact_limit_bytes)
    throw CheckError("the budget cannot be met: the tensors that are not solved by GPTQ take " + bytes_text(bytes) +
                     " alone, the artifact may take " + bytes_text(*options_.artifact_limit_bytes));
}

SearchResult PlanSearch::largest_fitting(const std::map<std::string, double>& sensitivities) {
  auto plan_with = [&](int64_t high_count) {
    TracePlanOptions options = options_.plan;
    options.high_count = high_count;
    return make_trace_plan(tensors_, sensitivities, options);
  };
  int64_t most = count_solved(plan_with(0));
  SearchResult best = encode(plan_with(most), most, 0);
  if (fits(best)) return best;
  best = encode(plan_with(0), 0, 0);
  int64_t low = 0, high = most;  // `low` fits once `best` does; `high` does not
  while (fits(best) && high - low > 1) {
    int64_t middle = low + (high - low) / 2;
    SearchResult tried = encode(plan_with(middle), middle, 0);
    if (fits(tried)) {
      low = middle;
      best = std::move(tried);
    } else {
      high = middle;
    }
  }
  return best;
}

SearchResult PlanSearch::prune_to_fit(SearchResult unpruned) {
  uint64_t limit = *options_.artifact_limit_bytes;
  int64_t low = 0, high = count_prunable(unpruned.model, unpruned.plan);
  auto low_bytes = static_cast<double>(unpruned.artifact.size());
  SearchResult best = encode(unpruned.plan, unpruned.high_count, high);
  if (!fits(best))
    throw CheckError("the budget cannot be met: the smallest artifact reached, with all " + counted(high, "code") +
                     " of +-1 set to 0, takes " + bytes_text(best.artifact.size()) + ", it may take " +
                     bytes_text(limit));
  auto target = static_cast<double>(limit) * (1 + kPruneSlack) / 2;
  for (int i = 0; i < kMaxPruneEncodes && high - low > 1; ++i) {
    if (static_cast<double>(best.artifact.size()) >= kPruneSlack * static_cast<double>(limit)) break;
    // Between two sizes the size falls nearly linearly with the count; keep off the ends in case it does not.
    double share = (low_bytes - target) / (low_bytes - static_cast<double>(best.artifact.size()));
    int64_t middle = low + static_cast<int64_t>(static_cast<double>(high - low) * std::clamp(share, 0.05, 0.95));
    SearchResult tried = encode(unpruned.plan, unpruned.high_count, std::clamp(middle, low + 1, high - 1));
    if (fits(tried)) {
      high = tried.pruned_codes;
      best = std::move(tried);
    } else {
      low = tried.pruned_codes;
      low_bytes = static_cast<double>(tried.artifact.size());
    }
  }
  return best;
}

SearchResult PlanSearch::run(const std::map<std::string, double>& sensitivities) {
  SearchResult result;
  if (options_.high_is_auto) {
    result = largest_fitting(sensitivities);
  } else {
    Plan plan = make_trace_plan(tensors_, sensitivities, options_.plan);
    result = encode(plan, std::min(options_.plan.high_count, count_solved(plan)), 0);
  }
  if (!fits(result)) result = prune_to_fit(std::move(result));
  result.encodes = encodes_;
  return result;
}

}  // namespace thimble
