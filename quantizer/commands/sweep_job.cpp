// sweep_job.cpp: the steps of a sweep, in order.
#include "quantizer/commands/sweep_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "quantizer/console/diagnostics.h"
#include "quantizer/pipeline/score_model.h"
#include "quantizer/reports/gnuplot.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/count_text.h"
#include "runtime/base/file.h"
#include "runtime/base/hash.h"

namespace thimble {
namespace {

QuantizeRequest request_of(const SweepRequest& sweep, MethodKind method) {
  QuantizeRequest request = sweep.base;
  choose_method(request, method, sweep.encoding);
  request.high_is_auto = true;
  request.predicts_loss = method == MethodKind::kSlope || !request.report.empty();
  if (method != MethodKind::kSlope && !request.hessians.empty()) request.calibration_tokens.clear();  // to distil on
  return request;
}

class Sweep {
 public:
  Sweep(const SweepRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times, Console& console)
      : request_(request),
        ranks_(ranks),
        times_(times),
        console_(console),
        tokenizer_(Tokenizer::load(request.source.tokenizer)),
        byte_table_(tokenizer_),
        source_(source),
        job_(request.base, source, ranks, times, console) {}

  SweepOutcome run() {
    const Spec& spec = source_.runnable();
    check_vocab_size(tokenizer_, spec.vocabulary(), request_.base.checkpoint);
    const int64_t context = request_.source.context_for(spec, request_.base.checkpoint);
    const std::vector<Token> tokens = request_.source.load(tokenizer_, spec.vocabulary());
    const EvaluationOptions scoring = request_.source.evaluation_options(context);
    results_.checkpoint = request_.base.checkpoint;
    results_.parameters = job_.parameters();
    const auto targets = static_cast<int64_t>(tokens.size()) - 1;
    results_.notes = {context_note(spec, context, std::min(targets, scoring.max_targets.value_or(targets)))};
    plan(scoring_key(tokens, context, scoring));
    if (ranks_.is_root()) begin();
    const InterruptNotice notice(ranks_.is_root() ? console_.resume_line(request_.base.work_folder) : "");
    share_progress();
    if (!has_original_) score_original();
    save();
    for (PlannedPoint& planned : plan_)
      if (!planned.is_found) add_point(planned);
    return ranks_.is_root() ? finish() : SweepOutcome{};
  }

 private:
  struct PlannedPoint {
    MethodKind method;
    uint64_t budget_bytes = 0;
    uint64_t key = 0;       // hash of all that decides it
    bool is_found = false;  // on all ranks
    SweepPoint point = {};  // on rank 0
  };

  std::string output(const std::string& extension) const { return request_.prefix + extension; }

  // Ascending, each once.
  std::vector<uint64_t> budgets() const {
    std::vector<uint64_t> budgets = request_.budgets_bytes;
    for (double bits : request_.bits_per_weight) budgets.push_back(bytes_at(bits, results_.parameters));
    std::ranges::sort(budgets);
    budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
    return budgets;
  }

  // In the order of methods asked for, and of budgets.
  void plan(uint64_t scoring_key) {
    original_key_ = Hasher().add(scoring_key).add(std::string_view("original")).digest();
    for (MethodKind method : request_.methods) {
      const uint64_t key = method_key(scoring_key, method);
      for (uint64_t budget : budgets())
        plan_.push_back(
            {method, budget, Hasher().add(key).add(std::string_view(method_name(method))).add(budget).digest()});
    }
    results_.planned_points = plan_.size();
  }

  // Where the artifact of a point lies while it is scored.
  std::string artifact_path(const PlannedPoint& planned) const {
    if (!request_.keep_artifacts) return work_->artifact_path(planned.key).value_or(output(".unscored.thmb"));
    return fmt::format("{}-{}-{}.thmb", request_.prefix, method_name(planned.method), planned.budget_bytes);
  }

  uint64_t scoring_key(const std::vector<Token>& tokens, int64_t context, const EvaluationOptions& options) const {
    return Hasher()
        .add(job_.key())
        .add(xxh3(MappedFile(request_.source.tokenizer).bytes()))
        .add(std::as_bytes(std::span(tokens)))
        .add(static_cast<uint64_t>(context))
        .add(static_cast<uint64_t>(options.stride))
        .add(static_cast<uint64_t>(options.max_targets.value_or(0)))
        .digest();
  }

  uint64_t method_key(uint64_t scoring_key, MethodKind method) const {
    const QuantizeRequest request = request_of(request_, method);
    const bool collects = request.hessians.empty(), writes_text = collects && request.calibration_tokens.empty();
    Json decides = {{"min_elements", request.plan.min_elements},
                    {"codec", request.encode.codec ? static_cast<int>(*request.encode.codec) : -1},
                    {"rate_bound", request.rate_bound},
                    {"fisher", request.fisher}};  // the unit of predicted losses
    for (const std::string& file : {request.hessians, request.calibration_tokens})
      decides["files"].push_back(file.empty() ? 0 : xxh3(MappedFile(file).bytes()));
    if (collects || !request.calibration_tokens.empty()) decides["length"] = request.calibration.length;
    if (writes_text) decides["text"] = {request.calibration.seed, request.temperatures, request.calibration.sequences};
    const GainTunerOptions& tuner = request.tuner;
    if (method == MethodKind::kSlope)
      decides["slope"] = {to_json(request.slope), tuner.steps,      tuner.batch,
                          tuner.row_rate,         tuner.small_rate, request.cross_sequences};
    if (method == MethodKind::kTrace) decides["bits"] = {request.plan.low_bits, request.plan.high_bits};
    return Hasher().add(scoring_key).add(canonical_json(decides)).digest();
  }

  // Rank 0: looks at all that may be wrong with files before hours of computing.
  void begin() {
    const QuantizeRequest& base = request_.base;
    if (request_.keep_artifacts) {
      FileRoles roles = request_.roles;
      for (const PlannedPoint& planned : plan_) roles.output("the kept artifact", artifact_path(planned));
      roles.check();
    }
    if (!request_.references.empty())
      results_.references = parse_reference_points(MappedFile(request_.references).bytes(), request_.references);
    work_.emplace(base.work_folder);
    load_records();
  }

  std::optional<Json> load(uint64_t key) const {
    const std::optional<ByteVector> record = work_->load({WorkKind::kScore, key});
    return record ? std::optional(parse_json(*record, request_.base.work_folder)) : std::nullopt;
  }

  void save(uint64_t key, const Json& record) const {
    // Messages may name files in bytes that are not UTF-8.
    work_->save({WorkKind::kScore, key}, as_bytes_of(record.dump(-1, ' ', false, Json::error_handler_t::replace)));
  }

  void load_records() {
    if (const std::optional<Json> record = load(original_key_)) results_.original = original_from(*record);
    size_t found = 0;
    for (PlannedPoint& planned : plan_) {
      const std::optional<Json> record = load(planned.key);
      std::optional<SweepPoint> point = record ? point_from(*record) : std::nullopt;
      if (!point || !is_artifact_kept(*point, planned)) continue;
      planned.point = std::move(*point);
      planned.is_found = true;
      ++found;
    }
    if (found > 0)
      console_.note(fmt::format("{}: {} of {} are there already", request_.base.work_folder, found,
                                counted(plan_.size(), "point")));
  }

  // Where artifacts are to be kept, is this point's the one that was scored?
  bool is_artifact_kept(const SweepPoint& point, const PlannedPoint& planned) const {
    if (!request_.keep_artifacts || !point.failure.empty()) return true;
    const std::string path = artifact_path(planned);
    return file_exists(path) && xxh3(MappedFile(path).bytes()) == point.artifact_hash;
  }

  // What is left to do is the same on all ranks.
  void share_progress() {
    ByteVector found = {std::byte{results_.original ? uint8_t{1} : uint8_t{0}}};
    for (const PlannedPoint& planned : plan_) found.push_back(std::byte{planned.is_found ? uint8_t{1} : uint8_t{0}});
    ranks_.broadcast(found);
    has_original_ = found.at(0) != std::byte{0};
    for (size_t i = 0; i < plan_.size(); ++i) plan_[i].is_found = found.at(i + 1) != std::byte{0};
  }

  BpbReport score(const std::function<LoadedModel()>& load) {
    return times_.time("evaluation", [&] {
      return score_model(load, request_.source, tokenizer_, byte_table_, request_.base.device, ranks_, console_).report;
    });
  }

  void score_original() {
    const BpbReport report = score([&] { return load_model(source_); });
    results_.original = {source_.file().file_bytes(), report.bits_per_byte(), scored_text(report), report.blocks};
    if (ranks_.is_root()) save(original_key_, record_of(*results_.original));
  }

  void add_point(PlannedPoint& planned) {
    if (!is_calibrated_) job_.collect();
    is_calibrated_ = true;
    const double start = seconds_since_start();
    QuantizeRequest request = request_of(request_, planned.method);
    request.budget_bytes = planned.budget_bytes;
    request.output = ranks_.is_root() ? artifact_path(planned) : "";
    share_text(request.output);  // to score it
    SweepPoint& point = planned.point;
    point.method = method_name(planned.method);
    point.budget_bytes = planned.budget_bytes;
    const QuantizeOutcome outcome = fit(request, point);
    if (point.failure.empty()) measure(request.output, outcome, point);
    if (ranks_.is_root() && point.failure.empty()) describe(point, outcome);
    point.seconds = seconds_since_start() - start;
    planned.is_found = true;
    if (!ranks_.is_root()) return;
    if (!request_.keep_artifacts) std::filesystem::remove(request.output);
    save(planned.key, record_of(point));
    save();
    console_.note(point.failure.empty()
                      ? fmt::format("{} at {}: {}, {:.6f} bits per byte", point.method, bytes_text(point.budget_bytes),
                                    bytes_text(point.artifact_bytes), point.bits_per_byte)
                      : fmt::format("{} at {}: {}", point.method, bytes_text(point.budget_bytes), point.failure));
  }

  void measure(const std::string& artifact, const QuantizeOutcome& outcome, SweepPoint& point) {
    const BpbReport report = score([&] { return load_model(artifact, ""); });
    if (!ranks_.is_root()) return;
    point.bits_per_byte = report.bits_per_byte();
    point.gap_standard_error = paired_standard_error(results_.original->blocks, report.blocks);
    point.artifact_bytes = outcome.artifact_bytes;
    point.fill_reason = outcome.fill_reason;
    point.artifact_hash = xxh3(MappedFile(artifact).bytes());
    if (outcome.rate.total.weights == 0) return;
    point.predicted_loss = outcome.rate.total.predicted_loss;
    if (outcome.rate.total.bound_bits) point.distance_bits_per_weight = outcome.rate.total.distance();
  }

  // A budget that cannot be met is a result.
  QuantizeOutcome fit(const QuantizeRequest& request, SweepPoint& point) {
    QuantizeOutcome outcome;
    try {
      job_.check_lower_bound(request);
      outcome = job_.fit(request);
    } catch (const CheckError& error) {
      point.failure = error.what();
    }
    return outcome;
  }

  // Rank 0's text reaches all.
  void share_text(std::string& text) {
    ByteVector bytes(as_bytes_of(text).begin(), as_bytes_of(text).end());
    ranks_.broadcast(bytes);
    text = as_text(bytes);
  }

  // Rank 0: the report as far as the sweep has come.
  void save() {
    if (!ranks_.is_root()) return;
    results_.points.clear();
    for (const PlannedPoint& planned : plan_)
      if (planned.is_found) results_.points.push_back(planned.point);
    write_file_atomically(output(".csv"), to_csv(results_));
    // Last, so that "complete" is true of both.
    write_file_atomically(output(".json"),
                          to_json(results_).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
  }

  SweepOutcome finish() {
    SweepOutcome outcome;
    const bool is_any_met =
        std::ranges::any_of(results_.points, [](const SweepPoint& point) { return point.failure.empty(); });
    if (is_any_met) draw(outcome);
    for (const std::string& note : {job_.work_note(), work_->note()})
      if (!note.empty()) results_.notes.emplace_back(note);
    results_.is_complete = true;
    save();
    if (!is_any_met)
      throw CheckError("no budget can be met; at " + bytes_text(results_.points.back().budget_bytes) + ": " +
                       results_.points.back().failure);
    describe_kept();
    if (!request_.base.keep_work) work_->remove();
    outcome.files.insert(outcome.files.begin(), {output(".json"), output(".csv")});
    outcome.results = std::move(results_);
    outcome.tensors = std::move(tensors_);
    for (MethodKind method : request_.methods) add_settings(method, outcome.settings);
    return outcome;
  }

  void describe(const SweepPoint& point, const QuantizeOutcome& outcome) {
    tensors_[{point.method, point.budget_bytes}] = report_tensors(outcome.stored, reported_matrices(outcome.rate));
    made_with_.emplace(point.method, provenance_settings(outcome.stored));
  }

  // Of points from an earlier run, which may have kept the artifacts.
  void describe_kept() {
    if (!request_.keep_artifacts) return;
    for (const PlannedPoint& planned : plan_) {
      const SweepPoint& point = planned.point;
      if (!point.failure.empty() || tensors_.contains({point.method, point.budget_bytes})) continue;
      const std::string path = artifact_path(planned);
      tensors_[{point.method, point.budget_bytes}] =
          report_tensors(describe_artifact(MappedFile(path).bytes(), path), {});
    }
  }

  // What a method's options came to, and what one of its artifacts says, where this run made one.
  void add_settings(MethodKind method, std::vector<ReportSettings>& settings) const {
    settings.push_back(resolved_settings(request_of(request_, method)));
    settings.back().title = "Method " + method_name(method);
    auto made_with = made_with_.find(method_name(method));
    if (made_with == made_with_.end()) return;
    settings.push_back(made_with->second);
    settings.back().title = "What artifacts of method " + method_name(method) + " say they were made with";
  }

  void draw(SweepOutcome& outcome) {
    const std::filesystem::path prefix(request_.prefix);
    const std::string name = prefix.filename().string(), model = std::filesystem::path(results_.checkpoint).filename();
    const std::vector<std::string> images = {name + ".svg", name + ".png"};
    const std::string script = chart_script(sweep_chart(results_), model, images);
    write_file_atomically(output(".gp"), script);
    outcome.files.push_back(output(".gp"));
    if (!has_gnuplot()) {
      results_.notes.emplace_back(fmt::format("gnuplot is not installed: no {} and {}; {} draws them", output(".svg"),
                                              output(".png"), output(".gp")));
      return;
    }
    run_gnuplot(script, images, prefix.parent_path().string());
    outcome.files.insert(outcome.files.end(), {output(".svg"), output(".png")});
  }

  const SweepRequest& request_;
  Ranks& ranks_;
  StageTimes& times_;
  Console& console_;
  std::optional<WorkFolder> work_;  // of rank 0
  Tokenizer tokenizer_;
  ByteTable byte_table_;
  OpenedCheckpoint& source_;
  QuantizeJob job_;
  bool is_calibrated_ = false, has_original_ = false;
  uint64_t original_key_ = 0;
  std::vector<PlannedPoint> plan_;
  SweepResults results_;
  SweepTensors tensors_;
  std::map<std::string, ReportSettings> made_with_;  // by method
};

}  // namespace

SweepOutcome run_sweep(const SweepRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
                       Console& console) {
  return Sweep(request, source, ranks, times, console).run();
}

}  // namespace thimble
