// slope_method.cpp: see slope_method.h.
#include "quantizer/methods/slope/slope_method.h"

#include <fmt/format.h>

#include <algorithm>

#include "gptq/trace/plan.h"
#include "packer/layout/format.h"
#include "quantizer/methods/slope/cross_terms.h"
#include "runtime/base/error.h"
#include "runtime/base/hash.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

// What all runs over one checkpoint share.
struct SlopeStart {
  QuantizedModel fixed;  // all tensors but those of the layers
  SlopeLayers layers;
};

// The matrices that something is known about.
std::set<std::string> names_of(const std::map<std::string, MatrixLoss>& losses) {
  std::set<std::string> names;
  for (const auto& [name, loss] : losses) names.insert(name);
  return names;
}

// Of `losses`, those of matrices that the plan solves.
std::map<std::string, MatrixLoss> losses_in_plan(std::map<std::string, MatrixLoss> losses, const Plan& plan) {
  std::erase_if(losses, [&](const auto& item) { return !plan.at(item.first).needs_hessian(); });
  return losses;
}

std::vector<LayerOutcome> layer_outcomes(const SlopeOutcome& result, const SlopeLayers& layers,
                                         const SlopeOptions& options) {
  std::vector<LayerOutcome> outcomes;
  for (const auto& [name, report] : result.reports) {
    LayerOutcome layer;
    layer.name = name;
    layer.precision = trellis_name(options.trellis_bits);
    layer.output_fisher = layers.mean_row_weight(name);
    layer.slope_report = report;
    outcomes.push_back(std::move(layer));
  }
  return outcomes;
}

class SlopeMethod final : public Method {
 public:
  explicit SlopeMethod(const SlopeMethodOptions& options) : options_(options) {}

  Json provenance() const override {
    Json provenance = to_json(options_.slope);
    provenance["method"] = "slope";
    provenance["effort"] = level_of(options_.effort).name;
    provenance["distill_steps"] = options_.tuner.steps;
    if (!options_.data_share)
      provenance["data_share"] = "auto";
    else if (*options_.data_share > 0)
      provenance["data_share"] = *options_.data_share;
    if (!options_.temperature)
      provenance["target_temperature"] = "auto";
    else if (*options_.temperature != 1)
      provenance["target_temperature"] = *options_.temperature;
    if (options_.codes.steps > 0) {
      provenance["learn_steps"] = options_.codes.steps;
      provenance["learn_batch"] = options_.codes.batch;
      provenance["learn_rate"] = options_.codes.rate;
    }
    return provenance;
  }

  // A CheckError when the matrices to solve do not even fit with all codes 0. Of fewer matrices, which a file of
  // Hessians may have, even that takes more. Models that no file of a few bytes may hold are passed over.
  void check_lower_bound(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    if (!limit_bytes) return;
    const Plan plan = make_slope_plan(work.summaries, layers_to_solve(work), options_.min_elements);
    QuantizedModel model = work.header;
    model.tensors = work.solver.solve_without_hessians(plan);
    uint64_t codes = 0;
    for (const auto& [name, precision] : plan) {
      if (!precision.needs_hessian()) continue;
      const Shape& shape = work.summaries.at(name).shape;
      codes += static_cast<uint64_t>(element_count(shape));
      model.tensors.push_back(zero_matrix(name, shape, options_.slope.trellis_bits));
    }
    if (codes * sizeof(int32_t) > kExpansionFloorBytes) return;
    std::ranges::sort(model.tensors, {}, &QuantizedTensor::name);
    const uint64_t bytes = work.encoder.bytes(model, options_.encode, work.progress);
    if (bytes > *limit_bytes)
      throw CheckError(fmt::format("the budget cannot be met: the smallest artifact takes {}{}, it may take {}",
                                   options_.knows_layers ? "" : "at least ", bytes_text(bytes),
                                   bytes_text(*limit_bytes)));
  }

  Fitted fit(std::optional<uint64_t> limit_bytes, const MethodWork& work) override {
    if (!start_) start_.emplace(start(work));
    double before = 0;
    if (options_.target.bpb_gap)
      before = work.times.time("measuring gaps", [&] {
        return options_.bits_per_byte({work.source.runnable(), work.source.weights()}, work.key, work.shared);
      });
    auto measure_gap = [&](const QuantizedModel& tried) {
      return work.times.time("measuring gaps", [&] {
        const uint64_t key = Hasher().add(work.key).add(hash_of(tried)).digest();
        return options_.bits_per_byte(dequantize_model(tried, work.source.path()), key, work.shared) - before;
      });
    };
    std::optional<DistillInput> distill;
    if ((options_.tuner.steps > 0 || options_.codes.steps > 0) && work.tokens.count >= 2)
      distill.emplace(DistillInput{work.source.weights(), work.tokens, work.device, options_.tuner, work.shared,
                                   Hasher().add(work.key).add(std::as_bytes(std::span(work.tokens.tokens))).digest(),
                                   options_.codes, options_.learns_rows, options_.is_given});
    if (distill) {
      distill->at_home = work.at_home;
      distill->temperature = options_.temperature ? *options_.temperature : work.times.time("fitting temperature", [&] {
        return fitted_temperature(*distill, work.progress);
      });
      distill->data_share = options_.data_share.value_or(fitted_data_share(distill->temperature));
    }
    SlopeTarget target = options_.target;
    target.limit_bytes = limit_bytes;
    std::optional<CrossTerms> cross_terms;
    std::unique_ptr<PairedModels> own_pairs;
    if (options_.slope.cross_term > 0) {
      if (!options_.outside.pairs)
        own_pairs = make_paired_models(work.source.weights(), work.tokens, options_.cross_sequences, work.device,
                                       work.shared.ranks());
      cross_terms.emplace(
          CrossTerms{own_pairs ? *own_pairs : *options_.outside.pairs, start_->fixed, start_->layers, work.times});
    }
    SlopeTools tools = {start_->layers, options_.encode, work.encoder, work.times, work.progress};
    if (distill && rounds_small(work))
      tools.small = work.times.time("small tensors", [&] {
        return small_steps(measured_small_fisher(*distill, work.progress), work.losses, start_->fixed);
      });
    const std::unique_ptr<Teacher> own_teacher = distill ? make_teacher(*distill) : nullptr;
    Teacher* const teacher = options_.outside.teacher ? options_.outside.teacher : own_teacher.get();
    SlopeOutcome result =
        SlopeSearch(start_->fixed, tools, cross_terms ? &*cross_terms : nullptr, teacher, measure_gap).run(target);
    result.layers = layer_outcomes(result, start_->layers, options_.slope);
    return {std::move(result.model), std::move(result.artifact), static_cast<FitReport&&>(result)};
  }

  std::string fill_reason() const override {
    return fmt::format("{} bits per weight were asked for, which take no more",
                       options_.target.bits_per_weight.value_or(0));
  }

 private:
  // Where the loss says how coarsely, and a codec makes less of coarse values.
  bool rounds_small(const MethodWork& work) const {
    return !work.statistics.loss.empty() && !options_.encode.portable && options_.encode.codec != CodecId::kNone;
  }
  // And the tables, whose steps follow from the loss (a file of Hessians may be without it: then they take more).
  std::set<std::string> layers_to_solve(const MethodWork& work) const {
    std::set<std::string> names(work.layers.begin(), work.layers.end());
    if (const std::optional<Spec>& spec = work.source.spec())
      for (const Parameter& parameter : spec->network->parameters)
        if (parameter.role == Role::kTable || parameter.role == Role::kHead) names.insert(parameter.name);
    return names;
  }

  SlopeStart start(const MethodWork& work) const {
    const Plan plan = make_slope_plan(work.summaries, names_of(work.losses), options_.min_elements);
    QuantizedModel fixed = work.header;
    fixed.tensors = work.solver.solve_without_hessians(plan);
    return work.times.time("solve", [&] {
      return SlopeStart{std::move(fixed),
                        SlopeLayers(work.source.parameters(), losses_in_plan(work.losses, plan), options_.slope,
                                    work.device, work.shared, work.key, work.progress)};
    });
  }

  const SlopeMethodOptions options_;
  std::optional<SlopeStart> start_;
};

}  // namespace

std::unique_ptr<Method> make_slope_method(const SlopeMethodOptions& options) {
  return std::make_unique<SlopeMethod>(options);
}

}  // namespace thimble
