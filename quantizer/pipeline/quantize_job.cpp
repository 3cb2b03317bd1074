// quantize_job.cpp: the steps of the pipeline, in order.
#include "quantizer/pipeline/quantize_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "quantizer/checkpoints/hub_folder.h"
#include "quantizer/console/diagnostics.h"
#include "quantizer/console/version.h"
#include "quantizer/formats/hessian_file.h"
#include "quantizer/methods/slope/slope_layers.h"
#include "quantizer/methods/slope/slope_method.h"
#include "quantizer/methods/trace/plan_methods.h"
#include "quantizer/pipeline/quantize_plans.h"
#include "runtime/base/hash.h"
#include "runtime/base/memory_plan.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

// With those of the request's options that are the method's.
std::unique_ptr<Method> make_method(const QuantizeRequest& request) {
  switch (request.method) {
    case MethodKind::kTrace: return make_trace_method({request.plan, request.high_is_auto, request.encode});
    case MethodKind::kNvfp4: return make_nvfp4_method(request.plan.min_elements, request.encode);
    case MethodKind::kSlope: break;
  }
  return make_slope_method({request.slope, request.plan.min_elements, request.effort, request.cross_sequences,
                            request.tuner, request.codes, request.learns_rows, request.given_text.is_given(),
                            request.data_share, request.target_temperature, request.slope_target, request.bits_per_byte,
                            request.encode, request.outside, request.hessians.empty()});
}

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

Json calibration_provenance(const QuantizeRequest& request) {
  const GivenText& text = request.given_text;
  if (!request.hessians.empty()) return "hessians";
  if (text.is_given() && !text.is_drawn) return "tokens";
  Json drawn = {{"seed", request.calibration.seed},
                {"sequences", request.calibration.sequences},
                {"length", request.calibration.length}};
  if (text.is_given())
    drawn["from"] = text.texts.empty() ? "tokens" : "text";
  else
    drawn["temperature"] =
        request.temperatures.size() == 1 ? Json(request.temperatures[0]) : Json(request.temperatures);
  return drawn;
}

// Config, layout, where calibration came from, and what makes the codes.
QuantizedModel header_of(const QuantizeRequest& request, const OpenedCheckpoint& source, const Method& method) {
  QuantizedModel header;
  Json config = source.spec() ? source.spec()->config : source.config_json();
  copy_special_tokens(source.config_json(), config);
  header.config_json = canonical_json(config);
  header.banked = source.banked();
  Json provenance = {{"tool", std::string("thimble ") + kVersion}, {"calibration", calibration_provenance(request)}};
  provenance.update(method.provenance());
  header.provenance_json = canonical_json(provenance);
  return header;
}

// Of what budget and bits per weight allow, the less.
std::optional<uint64_t> artifact_limit(const QuantizeRequest& request, int64_t parameters) {
  std::optional<uint64_t> limit;
  if (const std::optional<double>& bits = request.slope_target.bits_per_weight) limit = bytes_at(*bits, parameters);
  if (const std::optional<uint64_t>& budget = request.budget_bytes) {
    if (request.code_bytes >= *budget)
      throw CheckError("the budget cannot be met: the code takes " + bytes_text(request.code_bytes) +
                       " of a budget of " + bytes_text(*budget));
    limit = std::min(limit.value_or(UINT64_MAX), *budget - request.code_bytes);
  }
  return limit;
}

// What the plan must know of every tensor. A model that runs must have finite weights only, one that does not may have
// others (a mask, say) outside the matrices to quantize.
std::map<std::string, TensorSummary> summarize(OpenedCheckpoint& source, const TracePlanOptions& plan) {
  std::map<std::string, TensorSummary> summaries;
  std::vector<std::pair<const TensorView*, TensorSummary*>> tensors;
  for (const auto& [name, tensor] : source.parameters()) tensors.emplace_back(&tensor, &summaries[name]);
  parallel_for(std::ssize(tensors), [&](int64_t i) {
    const auto& [tensor, summary] = tensors[static_cast<size_t>(i)];
    *summary = summarize_tensor(*tensor);
  });
  for (const auto& [name, summary] : summaries) {
    bool must_be_finite =
        source.spec() || (summary.shape.size() == 2 && element_count(summary.shape) > plan.min_elements);
    if (must_be_finite && !std::isfinite(summary.max_magnitude))
      throw FormatError(source.path(), "tensor '" + name + "' holds a value that is not finite");
  }
  return summaries;
}

// What was predicted for each layer. Of `slope` that is its sensitivity, and orders the layers.
void add_rates(ModelRate rate, QuantizeOutcome& outcome) {
  for (LayerOutcome& layer : outcome.layers) {
    auto found = rate.matrices.find(layer.name);
    if (found == rate.matrices.end()) continue;
    layer.predicted_loss = found->second.predicted_loss;
    if (layer.slope_report) layer.sensitivity = found->second.predicted_loss;
  }
  std::ranges::stable_sort(outcome.layers, std::ranges::greater{}, &LayerOutcome::sensitivity);
  outcome.rate = std::move(rate);
}

// Of the budget, else of what bits per weight come to.
void add_fill(const QuantizeRequest& request, const Method& method, QuantizeOutcome& outcome) {
  const std::optional<uint64_t> limit =
      request.budget_bytes ? request.budget_bytes : artifact_limit(request, outcome.parameters);
  if (!limit) return;
  const uint64_t bytes = outcome.artifact_bytes + (request.budget_bytes ? request.code_bytes : 0);
  outcome.fill = static_cast<double>(bytes) / static_cast<double>(*limit);
  if (is_filled(bytes, *limit))
    outcome.fill_reason.clear();
  else if (outcome.fill_reason.empty())
    outcome.fill_reason = method.fill_reason();
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
      key_(model_key(source_, request.device)),
      layers_(layers_with_hessians(request, source_)) {
  ranks.require_equal(hex64(key_), request.checkpoint + ": the hash of checkpoint and config");
}

int64_t QuantizeJob::parameters() const {
  int64_t count = 0;
  for (const auto& [name, summary] : summaries_) count += element_count(summary.shape);
  return count;
}

Method& QuantizeJob::method_of(const QuantizeRequest& request) {
  std::unique_ptr<Method>& method = methods_[request.method];
  if (!method) method = make_method(request);
  return *method;
}

MethodWork QuantizeJob::work_of(const QuantizedModel& header, LayerSolver& solver, const SharedWork& shared,
                                Encoder& encoder) {
  return {source_,
          summaries_,
          layers_,
          header,
          request_.device,
          times_,
          console_.progress(),
          solver,
          shared,
          encoder,
          collected_.key,
          collected_.statistics,
          losses_,
          collected_.tokens,
          collected_.at_home};
}

void QuantizeJob::check_lower_bound(const QuantizeRequest& request) {
  times_.time("lower bound", [&] {
    const StoredHessians none;
    const WorkFolder nowhere("");
    const std::unique_ptr<Ranks> single = make_single_rank();
    const SharedWork alone(nowhere, *single);
    Encoder encoder(alone, nullptr);
    LayerSolver solver(source_.parameters(), none, request.device, alone, key_, console_.progress());
    Method& method = method_of(request);
    const QuantizedModel header = header_of(request, source_, method);
    method.check_lower_bound(artifact_limit(request, parameters()), work_of(header, solver, alone, encoder));
  });
}

void QuantizeJob::collect() {
  if (request_.hessians.empty()) source_.weights();  // while a device gets ready
  memory_plans_ = plan_memory(request_, source_, layers_, ranks_.size());
  for (const MemoryPlan& plan : memory_plans_) console_.note(plan.text());
  work_.emplace(ranks_.is_root() ? request_.work_folder : "", request_.after_piece);
  const std::string& beside = request_.output.empty() ? request_.work_folder : request_.output;  // a sweep has several
  const std::string folder = std::filesystem::path(beside).parent_path().string();
  shared_.emplace(*work_, ranks_, folder.empty() ? "." : folder);
  const auto weights = static_cast<uint64_t>(parameters());
  encoder_.emplace(*shared_, &times_, working_memory(request_.device.host_memory_bytes, weights * kSolvedWeightBytes),
                   weights);  // a byte of each: of artifacts with half as many, two
  collected_ = obtain_statistics(request_, source_, key_, *shared_, times_, console_.progress());
  const StoredStatistics& statistics = collected_.statistics;
  solver_.emplace(source_.parameters(), statistics.hessians, request_.device, *shared_, collected_.key,
                  console_.progress());
  if (ranks_.is_root() && !request_.save_hessians.empty()) write_hessian_file(request_.save_hessians, statistics);
  std::map<std::string, Shape> shapes;
  for (const auto& [name, summary] : summaries_) shapes[name] = summary.shape;
  losses_ = matrix_losses(statistics, shapes);
}

QuantizeOutcome QuantizeJob::fit(const QuantizeRequest& request) {
  Method& method = method_of(request);
  const QuantizedModel header = header_of(request, source_, method);
  const MethodWork work = work_of(header, *solver_, *shared_, *encoder_);
  Fitted fitted = method.fit(artifact_limit(request, parameters()), work);
  QuantizeOutcome outcome;
  if (ranks_.is_root()) outcome = finish(request, method, std::move(fitted));
  ByteVector written;  // and not before rank 0 has written the artifact, do the others go on: they may score it next
  ranks_.broadcast(written);
  return outcome;
}

QuantizeOutcome QuantizeJob::finish(const QuantizeRequest& request, const Method& method, Fitted fitted) {
  times_.time("decode check", [&] {
    if (decode_artifact(fitted.artifact, request.output) != fitted.model)
      throw Error(ExitCode::kInternal, request.output + ": the artifact does not decode to the model it was made from");
  });
  QuantizeOutcome outcome;
  static_cast<FitReport&>(outcome) = std::move(fitted.report);
  outcome.stored = describe_artifact(fitted.artifact, request.output);
  for (const StoredTensorSummary& tensor : outcome.stored.tensors) ++outcome.precisions[tensor.precision];
  if (request.predicts_loss || request.rate_bound)
    times_.time("predicted loss", [&] {
      add_rates(meter_.measure(fitted.model, outcome.stored, request.rate_bound, console_.progress()), outcome);
    });
  work_->write_artifact(request.output, fitted.artifact);
  outcome.memory_plans = memory_plans_;
  outcome.parameters = parameters();
  outcome.original_bytes = source_.file().file_bytes();
  outcome.artifact_bytes = fitted.artifact.size();
  add_fill(request, method, outcome);
  outcome.loss = collected_.statistics.loss;
  outcome.work_note = work_note();
  return outcome;
}

QuantizeOutcome run_quantize(const QuantizeRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
                             Console& console) {
  QuantizeJob job(request, source, ranks, times, console);
  job.check_lower_bound(request);
  const InterruptNotice notice(ranks.is_root() ? console.resume_line(request.work_folder) : "");
  job.collect();
  QuantizeOutcome outcome = job.fit(request);
  if (!request.keep_work) job.remove_work();
  return outcome;
}

}  // namespace thimble
