// quantize_job.cpp: the steps of the pipeline, in order.
#include "quantizer/pipeline/quantize_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "packer/layout/format.h"
#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/hessian_file.h"
#include "quantizer/console/interrupt_notice.h"
#include "quantizer/console/version.h"
#include "quantizer/methods/plan_search.h"
#include "quantizer/pipeline/plan_memory.h"
#include "runtime/base/hash.h"
#include "runtime/codes/trellis.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

// What every result depends on: the checkpoint's bytes, its config, this program and its arithmetic.
uint64_t model_key(const OpenedCheckpoint& source, const Device& device) {
  return Hasher()
      .add(source.file().content_hash())
      .add(canonical_json(source.config_json()))
      .add(std::string_view(kVersion))
      .add(std::string_view(device.arithmetic()))
      .digest();
}

// The names that will have Hessians, before there are any.
std::vector<std::string> layers_with_hessians(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  if (!request.hessians.empty()) return hessian_file_layers(request.hessians);
  const Network& network = *source.runnable().network;
  std::vector<std::string> names;
  for (MatrixId id : network.linear_matrices()) names.push_back(network.matrix(id).name);
  return names;
}

// And the tables, whose steps `slope` takes from the loss (a file of Hessians may be without it: then they take more).
std::vector<std::string> layers_to_solve(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  std::vector<std::string> names = layers_with_hessians(request, source);
  if (request.method == Method::kSlope && source.spec())
    for (const Parameter& parameter : source.spec()->network->parameters)
      if (parameter.role == Role::kTable || parameter.role == Role::kHead) names.push_back(parameter.name);
  return names;
}

QuantizedModel header_of(const QuantizeRequest& request, const OpenedCheckpoint& source) {
  QuantizedModel header;
  header.config_json = canonical_json(source.spec() ? source.spec()->config : source.config_json());
  header.banked = source.banked();
  Json provenance = {{"tool", std::string("thimble ") + kVersion}};
  if (request.method == Method::kSlope) {
    provenance.update(to_json(request.slope));
    provenance["method"] = "slope";
    provenance["effort"] = level_of(request.effort).name;
    provenance["distill_steps"] = request.tuner.steps;
  } else if (request.method == Method::kNvfp4) {
    provenance["method"] = "nvfp4";
  } else {
    provenance["method"] = "trace";
    provenance["bits"] = {request.plan.low_bits, request.plan.high_bits};
  }
  if (!request.hessians.empty()) {
    provenance["calibration"] = "hessians";
  } else if (!request.calibration_tokens.empty()) {
    provenance["calibration"] = "tokens";
  } else {
    provenance["calibration"] = {
        {"seed", request.calibration.seed},
        {"sequences", request.calibration.sequences},
        {"length", request.calibration.length},
        {"temperature", request.temperatures.size() == 1 ? Json(request.temperatures[0]) : Json(request.temperatures)}};
  }
  header.provenance_json = canonical_json(provenance);
  return header;
}

std::vector<LayerOutcome> layer_outcomes(const Plan& plan, const std::map<std::string, double>& sensitivities,
                                         const FisherSet& fisher, const LayerSolver& solver) {
  std::vector<LayerOutcome> layers;
  for (const auto& [name, sensitivity] : sensitivities) {
    const Precision& precision = plan.at(name);
    const GptqReport* report = solver.report(name, precision);
    LayerOutcome layer;
    layer.name = name;
    layer.precision = precision_text(precision);
    layer.sensitivity = sensitivity;
    if (auto found = fisher.find(name); found != fisher.end()) layer.output_fisher = found->second.mean();
    if (report) layer.report = *report;
    layers.push_back(std::move(layer));
  }
  std::ranges::stable_sort(layers, std::ranges::greater{}, &LayerOutcome::sensitivity);
  return layers;
}

std::optional<uint64_t> artifact_limit(const QuantizeRequest& request) {
  if (!request.budget_bytes) return std::nullopt;
  if (request.code_bytes >= *request.budget_bytes)
    throw CheckError("the budget cannot be met: the code takes " + bytes_text(request.code_bytes) + " of a budget of " +
                     bytes_text(*request.budget_bytes));
  return *request.budget_bytes - request.code_bytes;
}

// There is nothing to choose in NVFP4: a CheckError where it takes too much.
void require_fit(const std::string& what, uint64_t bytes, std::optional<uint64_t> limit_bytes) {
  if (limit_bytes && bytes > *limit_bytes)
    throw CheckError("the budget cannot be met: " + what + " " + bytes_text(bytes) + ", the artifact may take " +
                     bytes_text(*limit_bytes));
}

// Of what budget and bits per weight allow, the less.
std::optional<uint64_t> slope_limit(const QuantizeRequest& request, int64_t parameters) {
  const std::optional<uint64_t> limit = artifact_limit(request);
  if (!request.slope_target.bits_per_weight) return limit;
  const uint64_t wanted = bytes_at(*request.slope_target.bits_per_weight, parameters);
  return std::min(limit.value_or(wanted), wanted);
}

SearchOptions search_options(const QuantizeRequest& request) {
  return {artifact_limit(request), request.high_is_auto, request.plan, request.encode};
}

// What of a quantize run only one of the methods does.
struct MethodResult {
  QuantizedModel model;
  ByteVector artifact;
  QuantizeOutcome outcome;
};

MethodResult run_trace(const QuantizeRequest& request, const OpenedCheckpoint& source,
                       const std::map<std::string, TensorSummary>& summaries, const CalibrationStatistics& statistics,
                       LayerSolver& solver, SectionCache& cache, StageTimes& times, Progress& progress) {
  std::map<std::string, double> sensitivities = trace_sensitivities(statistics.hessians);
  SearchOptions options = search_options(request);
  PlanSearch search(header_of(request, source), summaries, solver, options, cache, times, progress);
  SearchResult result = search.run(sensitivities);
  MethodResult done{std::move(result.model), std::move(result.artifact), {}};
  done.outcome.high_count = result.high_count;
  done.outcome.pruned_codes = result.pruned_codes;
  done.outcome.encodes = result.encodes;
  done.outcome.layers = layer_outcomes(result.plan, sensitivities, statistics.loss.output_fisher, solver);
  return done;
}

MethodResult run_nvfp4(const QuantizeRequest& request, const OpenedCheckpoint& source,
                       const std::map<std::string, TensorSummary>& summaries, const CalibrationStatistics& statistics,
                       LayerSolver& solver, SectionCache& cache, StageTimes& times, Progress& progress) {
  std::set<std::string> layers;
  for (const auto& [name, hessian] : statistics.hessians) layers.insert(name);
  const Plan plan = make_nvfp4_plan(summaries, layers, request.plan.min_elements);
  MethodResult done{header_of(request, source), {}, {}};
  done.model.tensors = times.time("solve", [&] { return solver.solve(plan); });
  done.artifact = times.time("encode", [&] { return encode_artifact(done.model, request.encode, cache, progress); });
  require_fit("the artifact in NVFP4 takes", done.artifact.size(), artifact_limit(request));
  done.outcome.encodes = 1;
  done.outcome.layers =
      layer_outcomes(plan, trace_sensitivities(statistics.hessians), statistics.loss.output_fisher, solver);
  return done;
}

// The matrices that something is known about.
std::set<std::string> names_of(const std::map<std::string, MatrixLoss>& losses) {
  std::set<std::string> names;
  for (const auto& [name, loss] : losses) names.insert(name);
  return names;
}

// Of `losses`, those of matrices that the plan solves.
std::map<std::string, MatrixLoss> losses_in_plan(std::map<std::string, MatrixLoss> losses, const Plan& plan) {
  std::erase_if(losses, [&](const auto& item) { return !needs_hessian(plan.at(item.first)); });
  return losses;
}

// Method slope, before anything is known about the matrices to solve: a CheckError when they do not even fit with all
// codes 0. Of fewer matrices than these, which a file of Hessians may have, even that takes more. Models that no file
// of a few bytes may hold are passed over.
void check_slope_bound(uint64_t limit_bytes, const QuantizeRequest& request, const Plan& plan, QuantizedModel model,
                       const std::map<std::string, TensorSummary>& summaries, SectionCache& cache, Progress& progress) {
  uint64_t codes = 0;
  for (const auto& [name, precision] : plan) {
    if (!needs_hessian(precision)) continue;
    const Shape& shape = summaries.at(name).shape;
    codes += static_cast<uint64_t>(element_count(shape));
    model.tensors.push_back(zero_matrix(name, shape, request.slope.trellis_bits));
  }
  if (codes * sizeof(int32_t) > kExpansionFloorBytes) return;
  std::ranges::sort(model.tensors, {}, &QuantizedTensor::name);
  const uint64_t bytes = artifact_bytes(model, request.encode, cache, progress);
  if (bytes > limit_bytes)
    throw CheckError(fmt::format("the budget cannot be met: the smallest artifact takes {}{}, it may take {}",
                                 request.hessians.empty() ? "" : "at least ", bytes_text(bytes),
                                 bytes_text(limit_bytes)));
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

bool distils(const QuantizeRequest& request, const TokenSequences& tokens) {
  return tokens.count >= 2 && request.tuner.steps > 0;
}

SlopeStart start_slope(const QuantizeRequest& request, OpenedCheckpoint& source,
                       const std::map<std::string, TensorSummary>& summaries,
                       const std::map<std::string, MatrixLoss>& losses, LayerSolver& solver, StageTimes& times,
                       Progress& progress) {
  const Plan plan = make_slope_plan(summaries, names_of(losses), request.plan.min_elements);
  QuantizedModel fixed = header_of(request, source);
  fixed.tensors = solver.solve_without_hessians(plan);
  return times.time("solve", [&] {
    return SlopeStart{std::move(fixed), SlopeLayers(source.parameters(), losses_in_plan(losses, plan), request.slope,
                                                    request.device, progress)};
  });
}

MethodResult run_slope(const QuantizeRequest& request, OpenedCheckpoint& source, const SlopeStart& start,
                       const TokenSequences& tokens, int64_t parameters, StageTimes& times, Progress& progress) {
  double before = 0;
  if (request.slope_target.bpb_gap)
    before = times.time("measuring gaps", [&] { return request.bits_per_byte({source.runnable(), source.weights()}); });
  auto measure_gap = [&](const QuantizedModel& tried) {
    return times.time("measuring gaps",
                      [&] { return request.bits_per_byte(dequantize_model(tried, request.output)) - before; });
  };
  std::optional<DistillInput> distill;
  if (distils(request, tokens)) distill.emplace(DistillInput{source.weights(), tokens, request.device, request.tuner});
  SlopeTarget target = request.slope_target;
  target.limit_bytes = slope_limit(request, parameters);
  std::optional<CrossTermSolver> cross_terms;
  if (request.slope.cross_term > 0)
    cross_terms.emplace(source.weights(), start.fixed, start.layers, tokens, request.cross_sequences, request.device,
                        times);
  SlopeSearch search(start.fixed, start.layers, cross_terms ? &*cross_terms : nullptr, request.encode,
                     distill ? &*distill : nullptr, measure_gap, times, progress);
  SlopeOutcome result = search.run(target);
  MethodResult done{std::move(result.model), std::move(result.artifact), {}};
  done.outcome.log2_c = result.log2_c;
  done.outcome.encodes = result.encodes;
  done.outcome.encoded = std::move(result.encoded);
  done.outcome.distill = result.distill;
  done.outcome.fill_reason = result.fill_reason;
  done.outcome.layers = layer_outcomes(result, start.layers, request.slope);
  return done;
}

// What the plan must know of every tensor. A model that runs must have finite weights only, one that does not may have
// others (a mask, say) outside the matrices to quantize.
std::map<std::string, TensorSummary> summarize(OpenedCheckpoint& source, const TracePlanOptions& plan) {
  std::map<std::string, TensorSummary> summaries;
  for (const auto& [name, tensor] : source.parameters()) {
    const TensorSummary& summary = summaries.emplace(name, summarize_tensor(tensor)).first->second;
    bool must_be_finite =
        source.spec() || (summary.shape.size() == 2 && element_count(summary.shape) > plan.min_elements);
    if (must_be_finite && !std::isfinite(summary.max_magnitude))
      throw FormatError(source.path(), "tensor '" + name + "' holds a value that is not finite");
  }
  return summaries;
}

// What was predicted for each layer. Of `slope` that is its sensitivity, and orders the layers.
void add_rates(ModelRate rate, Method method, QuantizeOutcome& outcome) {
  for (LayerOutcome& layer : outcome.layers) {
    auto found = rate.matrices.find(layer.name);
    if (found == rate.matrices.end()) continue;
    layer.predicted_loss = found->second.predicted_loss;
    if (method == Method::kSlope) layer.sensitivity = found->second.predicted_loss;
  }
  std::ranges::stable_sort(outcome.layers, std::ranges::greater{}, &LayerOutcome::sensitivity);
  outcome.rate = std::move(rate);
}

// Why less than all of a budget is used, where the method has not said it.
std::string fill_reason(const QuantizeRequest& request) {
  if (request.method == Method::kTrace)
    return "method trace has two precisions, and nothing between them to fill a budget with";
  if (request.method == Method::kNvfp4) return "method nvfp4 has one size, and no choice to fill a budget with";
  return fmt::format("{} bits per weight were asked for, which take no more",
                     request.slope_target.bits_per_weight.value_or(0));
}

// Of the budget, else of what the bits per weight that were asked for come to.
void add_fill(const QuantizeRequest& request, QuantizeOutcome& outcome) {
  const bool is_slope = request.method == Method::kSlope;
  std::optional<uint64_t> limit = request.budget_bytes;
  if (!limit && is_slope) limit = slope_limit(request, outcome.parameters);
  if (!limit) return;
  const uint64_t bytes = outcome.artifact_bytes + (request.budget_bytes ? request.code_bytes : 0);
  outcome.fill = static_cast<double>(bytes) / static_cast<double>(*limit);
  if (is_filled(bytes, *limit))
    outcome.fill_reason.clear();
  else if (outcome.fill_reason.empty())
    outcome.fill_reason = fill_reason(request);
}

}  // namespace

QuantizeJob::QuantizeJob(const QuantizeRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
                         Console& console)
    : request_(request),
      ranks_(ranks),
      times_(times),
      console_(console),
      source_(source),
      summaries_(summarize(source_, request.plan)),
      key_(model_key(source_, request.device)) {
  ranks.require_equal(hex64(key_), request.checkpoint + ": the hash of checkpoint and config");
}

int64_t QuantizeJob::parameters() const {
  int64_t count = 0;
  for (const auto& [name, summary] : summaries_) count += element_count(summary.shape);
  return count;
}

void QuantizeJob::check_lower_bound(const QuantizeRequest& request) {
  times_.time("lower bound", [&] {
    HessianSet none;
    WorkFolder nowhere("");
    LayerSolver solver(source_.parameters(), none, request.device, nowhere, key_, ranks_, console_.progress());
    const std::vector<std::string> layers = layers_to_solve(request, source_);
    if (request.method == Method::kSlope) {
      const std::optional<uint64_t> limit = slope_limit(request, parameters());
      if (!limit) return;
      const Plan plan = make_slope_plan(summaries_, {layers.begin(), layers.end()}, request.plan.min_elements);
      QuantizedModel model = header_of(request, source_);
      model.tensors = solver.solve_without_hessians(plan);
      check_slope_bound(*limit, request, plan, std::move(model), summaries_, cache_, console_.progress());
      return;
    }
    if (request.method == Method::kNvfp4) {
      const std::optional<uint64_t> limit = artifact_limit(request);
      if (!limit) return;
      QuantizedModel model = header_of(request, source_);
      model.tensors = solver.solve_without_hessians(
          make_nvfp4_plan(summaries_, {layers.begin(), layers.end()}, request.plan.min_elements));
      require_fit("the tensors that are not solved by GPTQ take",
                  artifact_bytes(model, request.encode, cache_, console_.progress()), limit);
      return;
    }
    SearchOptions options = search_options(request);
    PlanSearch(header_of(request, source_), summaries_, solver, options, cache_, times_, console_.progress())
        .check_lower_bound(layers);
  });
}

void QuantizeJob::collect() {
  memory_plans_ = plan_memory(request_, source_);
  for (const MemoryPlan& plan : memory_plans_) console_.note(plan.text());
  work_.emplace(ranks_.is_root() ? request_.work_folder : "");
  collected_ = obtain_statistics(request_, source_, key_, *work_, ranks_, times_, console_.progress());
  const CalibrationStatistics& statistics = collected_.statistics;
  solver_.emplace(source_.parameters(), statistics.hessians, request_.device, *work_, collected_.key, ranks_,
                  console_.progress());
  if (!ranks_.is_root()) return;
  if (!request_.save_hessians.empty()) write_hessian_file(request_.save_hessians, statistics);
  std::map<std::string, Shape> shapes;
  for (const auto& [name, summary] : summaries_) shapes[name] = summary.shape;
  losses_ = matrix_losses(statistics, shapes);
}

QuantizeOutcome QuantizeJob::fit(const QuantizeRequest& request) {
  if (!ranks_.is_root()) {
    solver_->serve();
    return {};
  }
  Progress& progress = console_.progress();
  const CalibrationStatistics& statistics = collected_.statistics;
  if (request.method == Method::kSlope && !slope_)
    slope_ = start_slope(request, source_, summaries_, losses_, *solver_, times_, progress);
  MethodResult result;
  switch (request.method) {
    case Method::kSlope:
      result = run_slope(request, source_, *slope_, collected_.tokens, parameters(), times_, progress);
      break;
    case Method::kTrace:
      result = run_trace(request, source_, summaries_, statistics, *solver_, cache_, times_, progress);
      break;
    case Method::kNvfp4:
      result = run_nvfp4(request, source_, summaries_, statistics, *solver_, cache_, times_, progress);
      break;
  }
  times_.time("decode check", [&] {
    if (decode_artifact(result.artifact, request.output) != result.model)
      throw Error(ExitCode::kInternal, request.output + ": the artifact does not decode to the model it was made from");
  });
  QuantizeOutcome outcome = std::move(result.outcome);
  outcome.stored = describe_artifact(result.artifact, request.output);
  for (const StoredTensorSummary& tensor : outcome.stored.tensors) ++outcome.precisions[tensor.precision];
  if (request.predicts_loss || request.rate_bound)
    times_.time("predicted loss", [&] {
      add_rates(meter_.measure(result.model, outcome.stored, request.rate_bound, progress), request.method, outcome);
    });
  work_->write_artifact(request.output, result.artifact);
  dismiss();  // once the artifact is there: the others may score it next

  outcome.memory_plans = memory_plans_;
  outcome.parameters = parameters();
  outcome.original_bytes = source_.file().file_bytes();
  outcome.artifact_bytes = result.artifact.size();
  add_fill(request, outcome);
  outcome.loss = statistics.loss;
  outcome.work_note = work_note();
  return outcome;
}

QuantizeOutcome run_quantize(const QuantizeRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
                             Console& console) {
  QuantizeJob job(request, source, ranks, times, console);
  if (ranks.is_root()) job.check_lower_bound(request);
  const InterruptNotice notice(ranks.is_root() ? console.resume_line(request.work_folder) : "");
  job.collect();
  QuantizeOutcome outcome = job.fit(request);
  if (!request.keep_work) job.remove_work();
  return outcome;
}

}  // namespace thimble
