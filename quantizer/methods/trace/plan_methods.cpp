// plan_methods.cpp: bisection over real artifacts, each of a plan.
#include "quantizer/methods/trace/plan_methods.h"

#include <algorithm>

#include "gptq/trace/plan.h"
#include "runtime/base/count_text.h"
#include "runtime/base/error.h"

namespace thimble {
namespace {

constexpr int kMaxPruneEncodes = 12;
// Pruning stops when the artifact is at least this share of the limit.
constexpr double kPruneSlack = 0.999;

void require_fit(uint64_t bytes, std::optional<uint64_t> limit_bytes, const std::string& what) {
  if (limit_bytes && bytes > *limit_bytes)
    throw CheckError("the budget cannot be met: " + what + ", the artifact may take " + bytes_text(*limit_bytes));
}

// Layers that the plan solves by GPTQ: the most that can be of high precision.
int64_t count_solved(const Plan& plan) {
  return std::ranges::count_if(plan, [](const auto& item) { return item.second.needs_hessian(); });
}

class PlanMethod : public Method {
 public:
  explicit PlanMethod(const EncodeOptions& encode) : encode_(encode) {}

  void check_lower_bound(std::optional<uint64_t> limit_bytes, const MethodWork& work) final {
    if (!limit_bytes) return;
    QuantizedModel fixed = work.header;
    fixed.tensors = work.solver.solve_without_hessians(first_plan(work));
    const uint64_t bytes = work.encoder.bytes(fixed, encode_, work.progress);
    require_fit(bytes, limit_bytes, "the tensors that are not solved by GPTQ take " + bytes_text(bytes) + " alone");
  }

 protected:
  // Which tensors it solves by GPTQ is true before anything is known of them.
  virtual Plan first_plan(const MethodWork& work) const = 0;

  // The plan's model, less so many of its cheapest codes.
  Fitted encode(const Plan& plan, int64_t pruned_codes, const MethodWork& work) const {
    Fitted fitted{work.header, {}, {}};
    fitted.model.tensors = work.times.time("solve", [&] { return work.solver.solve(plan); });
    fitted.report.pruned_codes = prune_smallest(fitted.model, plan, pruned_codes);
    fitted.artifact = work.encoder.artifact(fitted.model, encode_, work.progress);
    return fitted;
  }

  static std::vector<LayerOutcome> layer_outcomes(const Plan& plan, const MethodWork& work) {
    const FisherSet& fisher = work.statistics.loss.output_fisher;
    std::vector<LayerOutcome> layers;
    for (const auto& [name, sensitivity] : trace_sensitivities(work.statistics.hessians)) {
      const Precision& precision = plan.at(name);
      LayerOutcome& layer = layers.emplace_back();
      layer.name = name;
      layer.precision = precision_text(precision);
      layer.sensitivity = sensitivity;
      if (auto found = fisher.find(name); found != fisher.end()) layer.output_fisher = found->second.mean();
      if (const GptqReport* report = work.solver.report(name, precision)) layer.report = *report;
    }
    std::ranges::stable_sort(layers, std::ranges::greater{}, &LayerOutcome::sensitivity);
    return layers;
  }

 private:
  EncodeOptions encode_;
};

class TraceMethod final : public PlanMethod {
 public:
  explicit TraceMethod(const TraceMethodOptions& options) : PlanMethod(options.encode), options_(options) {}

  Json provenance() const override {
    return {{"method", "trace"}, {"bits", {options_.plan.low_bits, options_.plan.high_bits}}};
  }

  Fitted fit(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    Search search{*this, work, limit_bytes, trace_sensitivities(work.statistics.hessians)};
    Attempt best = options_.high_is_auto ? search.largest_fitting() : search.encode(options_.plan.high_count, 0);
    if (!search.fits(best)) best = search.prune_to_fit(std::move(best));
    FitReport& report = best.fitted.report;
    report.high_count = best.high_count;
    report.encodes = search.encodes;
    report.layers = layer_outcomes(best.plan, work);
    return std::move(best.fitted);
  }

  std::string fill_reason() const override {
    return "method trace has two precisions, and nothing between them to fill a budget with";
  }

 private:
  struct Attempt {
    int64_t high_count = 0;
    Plan plan;
    Fitted fitted;

    uint64_t bytes() const { return fitted.artifact.size(); }
  };

  // The way to one limit.
  struct Search {
    const TraceMethod& method;
    const MethodWork& work;
    std::optional<uint64_t> limit_bytes;
    std::map<std::string, double> sensitivities;
    int64_t encodes = 0;

    bool fits(const Attempt& attempt) const { return !limit_bytes || attempt.bytes() <= *limit_bytes; }

    Attempt encode(int64_t high_count, int64_t pruned_codes) {
      ++encodes;
      Attempt attempt;
      attempt.plan = method.plan_with(high_count, work, sensitivities);
      attempt.high_count = std::min(high_count, count_solved(attempt.plan));
      attempt.fitted = method.encode(attempt.plan, pruned_codes, work);
      return attempt;
    }

    // Or the smallest there is.
    Attempt largest_fitting() {
      Attempt best = encode(count_solved(method.plan_with(0, work, sensitivities)), 0);
      int64_t low = 0, high = best.high_count;  // `low` fits once `best` does; `high` does not
      if (fits(best)) return best;
      best = encode(0, 0);
      while (fits(best) && high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        Attempt tried = encode(middle, 0);
        const bool is_fitting = fits(tried);
        (is_fitting ? low : high) = middle;
        if (is_fitting) best = std::move(tried);
      }
      return best;
    }

    Attempt prune_to_fit(Attempt unpruned) {
      const auto limit = static_cast<double>(*limit_bytes);
      auto bytes_of = [](const Attempt& attempt) { return static_cast<double>(attempt.bytes()); };
      int64_t low = 0, high = count_prunable(unpruned.fitted.model, unpruned.plan);
      double low_bytes = bytes_of(unpruned);
      Attempt best = encode(unpruned.high_count, high);
      if (!fits(best))
        throw CheckError("the budget cannot be met: the smallest artifact reached, with all " + counted(high, "code") +
                         " of +-1 set to 0, takes " + bytes_text(best.bytes()) + ", it may take " +
                         bytes_text(*limit_bytes));
      const double target = limit * (1 + kPruneSlack) / 2;
      for (int i = 0; i < kMaxPruneEncodes && high - low > 1 && bytes_of(best) < kPruneSlack * limit; ++i) {
        // Between two sizes the size falls nearly linearly with the count; keep off the ends in case it does not.
        const double share = (low_bytes - target) / (low_bytes - bytes_of(best));
        const int64_t middle =
            low + static_cast<int64_t>(static_cast<double>(high - low) * std::clamp(share, 0.05, 0.95));
        Attempt tried = encode(unpruned.high_count, std::clamp(middle, low + 1, high - 1));
        const int64_t pruned_codes = tried.fitted.report.pruned_codes;
        if (fits(tried)) {
          high = pruned_codes;
          best = std::move(tried);
        } else {
          low = pruned_codes;
          low_bytes = bytes_of(tried);
        }
      }
      return best;
    }
  };

  Plan plan_with(int64_t high_count, const MethodWork& work, const std::map<std::string, double>& sensitivities) const {
    TracePlanOptions options = options_.plan;
    options.high_count = high_count;
    return make_trace_plan(work.summaries, sensitivities, options);
  }
  Plan first_plan(const MethodWork& work) const override {
    std::map<std::string, double> unknown;
    for (const std::string& layer : work.layers) unknown[layer] = 0;
    return make_trace_plan(work.summaries, unknown, options_.plan);
  }

  TraceMethodOptions options_;
};

class Nvfp4Method final : public PlanMethod {
 public:
  Nvfp4Method(int64_t min_elements, const EncodeOptions& encode) : PlanMethod(encode), min_elements_(min_elements) {}

  Json provenance() const override { return {{"method", "nvfp4"}}; }

  Fitted fit(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    const Plan plan = first_plan(work);
    Fitted fitted = encode(plan, 0, work);
    const uint64_t bytes = fitted.artifact.size();
    require_fit(bytes, limit_bytes, "the artifact in NVFP4 takes " + bytes_text(bytes));
    fitted.report.encodes = 1;
    fitted.report.layers = layer_outcomes(plan, work);
    return fitted;
  }

  std::string fill_reason() const override { return "method nvfp4 has one size, and no choice to fill a budget with"; }

 private:
  Plan first_plan(const MethodWork& work) const override {
    return make_nvfp4_plan(work.summaries, {work.layers.begin(), work.layers.end()}, min_elements_);
  }

  int64_t min_elements_;
};

}  // namespace

std::unique_ptr<Method> make_trace_method(const TraceMethodOptions& options) {
  return std::make_unique<TraceMethod>(options);
}

std::unique_ptr<Method> make_nvfp4_method(int64_t min_elements, const EncodeOptions& encode) {
  return std::make_unique<Nvfp4Method>(min_elements, encode);
}

}  // namespace thimble
