// trace_method.cpp: see trace_method.h.
#include "quantizer/methods/trace/trace_method.h"

#include "quantizer/methods/trace/plan_search.h"

namespace thimble {
namespace {

class TraceMethod final : public Method {
 public:
  explicit TraceMethod(const TraceMethodOptions& options) : options_(options) {}

  Json provenance() const override {
    return {{"method", "trace"}, {"bits", {options_.plan.low_bits, options_.plan.high_bits}}};
  }

  void check_lower_bound(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    const SearchOptions options = search_options(limit_bytes);
    search(options, work).check_lower_bound(work.layers);
  }

  Fitted fit(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    const SearchOptions options = search_options(limit_bytes);
    SearchResult result = search(options, work).run(trace_sensitivities(work.statistics.hessians));
    Fitted fitted{std::move(result.model), std::move(result.artifact), {}};
    fitted.report.high_count = result.high_count;
    fitted.report.pruned_codes = result.pruned_codes;
    fitted.report.encodes = result.encodes;
    fitted.report.layers = layer_outcomes(result.plan, work.statistics, work.solver);
    return fitted;
  }

  std::string fill_reason() const override {
    return "method trace has two precisions, and nothing between them to fill a budget with";
  }

 private:
  SearchOptions search_options(std::optional<uint64_t> limit_bytes) const {
    return {limit_bytes, options_.high_is_auto, options_.plan, options_.encode};
  }
  PlanSearch search(const SearchOptions& options, const MethodWork& work) {
    return {header_of(*this, work), work.summaries, work.solver, options, work.encoder, work.times, work.progress};
  }

  TraceMethodOptions options_;
};

}  // namespace

std::unique_ptr<Method> make_trace_method(const TraceMethodOptions& options) {
  return std::make_unique<TraceMethod>(options);
}

}  // namespace thimble
