// plan_search.h: the precision plan whose real artifact fits the budget.
#pragma once

#include <optional>

#include "quantizer/console/console.h"
#include "quantizer/methods/encoder.h"
#include "quantizer/methods/layer_solver.h"

namespace thimble {

struct SearchOptions {
  std::optional<uint64_t> artifact_limit_bytes;  // what the artifact itself may take
  bool high_is_auto = false;                     // search the number of high-precision layers
  TracePlanOptions plan;                         // high_count is used unless high_is_auto
  EncodeOptions encode;
};

struct SearchResult {
  Plan plan;
  QuantizedModel model;
  ByteVector artifact;
  int64_t high_count = 0;
  int64_t pruned_codes = 0;
  int64_t encodes = 0;  // artifacts encoded on the way
};

class PlanSearch {
 public:
  // `header` is the model to fill: config, provenance and layout, no tensors. All else must outlive the search.
  PlanSearch(QuantizedModel header, const std::map<std::string, TensorSummary>& tensors, LayerSolver& solver,
             const SearchOptions& options, Encoder& encoder, StageTimes& times, Progress& progress);

  // Before anything is solved: a CheckError when even what needs no solving exceeds the limit. `layers`: the names that
  // will have Hessians.
  void check_lower_bound(const std::vector<std::string>& layers);

  // The plan with the most high-precision layers that fits (auto), or the one asked for. When it does not fit, codes of
  // +-1 are set to 0, the cheapest first, as few as reach the limit (within kPruneSlack). When all of them are not
  // enough: a CheckError with the size reached.
  SearchResult run(const std::map<std::string, double>& sensitivities);

  // Pruning stops when the artifact is at least this share of the limit.
  static constexpr double kPruneSlack = 0.999;

 private:
  SearchResult encode(const Plan& plan, int64_t high_count, int64_t pruned_codes);
  bool fits(const SearchResult& result) const;
  SearchResult largest_fitting(const std::map<std::string, double>& sensitivities);
  SearchResult prune_to_fit(SearchResult unpruned);

  QuantizedModel header_;
  const std::map<std::string, TensorSummary>& tensors_;
  LayerSolver& solver_;
  const SearchOptions& options_;
  Encoder& encoder_;
  StageTimes& times_;
  Progress& progress_;
  int64_t encodes_ = 0;
};

}  // namespace thimble
