// sweep_job.cpp: the steps of a sweep, in order.
#include "quantizer/commands/sweep_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "quantizer/console/diagnostics.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/methods/shared_work.h"
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
  if (method != MethodKind::kSlope && !request.hessians.empty()) request.given_text = {};  // to distil on
  return request;
}

class Sweep {
 public:
  Sweep(const SweepRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times, Console& console)
      : request_(request),
        ranks_(ranks),
        times_(times),
        console_(console),
        tokenizer_(load_tokenizer(request.source.tokenizer)),
        byte_table_(tokenizer_),
        source_(source),
        job_(request.base, source, ranks, times, console) {}

  SweepOutcome run() {
    const Spec& spec = source_.runnable();
    check_vocab_size(tokenizer_, spec.vocabulary(), request_.base.checkpoint);
    const int64_t context = request_.source.context_for(spec, request_.base.checkpoint);
    const std::vector<Token> tokens = request_.source.load(tokenizer_, spec.vocabulary());
    results_.checkpoint = request_.base.checkpoint;
    results_.parameters = job_.parameters();
    const auto targets = static_cast<int64_t>(tokens.size()) - 1;
    results_.notes = {context_note(spec, context, std::min(targets, request_.source.max_targets.value_or(targets)))};
    plan(Hasher().add(job_.key()).add(scoring_key(request_.source, spec, tokens, context)).digest());
    if (ranks_.is_root()) begin();
    work_.emplace(ranks_.is_root() ? request_.base.work_folder : "");
    shared_.emplace(*work_, ranks_);
    const InterruptNotice notice(ranks_.is_root() ? console_.resume_line(request_.base.work_folder) : "");
    find_points();
    results_.original = shared_->result<OriginalScore>({WorkKind::kScore, original_key_}, [&]() -> OriginalScore {
      const BpbReport report = score([&] { return load_model(source_); });
      return {source_.file().file_bytes(), report.bits_per_byte(), scored_text(report), report.blocks};
    });
    save();
    for (PlannedPoint& planned : plan_)
      if (!planned.is_found) add_point(planned);
    return ranks_.is_root() ? finish() : SweepOutcome{};
  }

 private:
  struct PlannedPoint {
    MethodKind method;
    uint64_t key = 0;  // hash of all that decides it
    SweepPoint point;  // method and budget; once it is found, on rank 0 all of it
    bool is_found = false;
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
      const std::string name = method_name(method);
      for (uint64_t budget : budgets()) {
        const uint64_t point_key = Hasher().add(key).add(std::string_view(name)).add(budget).digest();
        SweepPoint& point = plan_.emplace_back(PlannedPoint{method, point_key, {}}).point;
        point.method = name;
        point.budget_bytes = budget;
      }
    }
    results_.planned_points = plan_.size();
  }

  // Where the artifact of a point lies while it is scored.
  std::string artifact_path(const PlannedPoint& planned) const {
    if (!request_.keep_artifacts) return work_->artifact_path(planned.key).value_or(output(".unscored.thmb"));
    return fmt::format("{}-{}-{}.thmb", request_.prefix, planned.point.method, planned.point.budget_bytes);
  }

  uint64_t method_key(uint64_t scoring_key, MethodKind method) const {
    const QuantizeRequest request = request_of(request_, method);
    const bool collects = request.hessians.empty(), has_text = request.given_text.is_given();
    Json decides = {{"min_elements", request.plan.min_elements},
                    {"codec", request.encode.codec ? static_cast<int>(*request.encode.codec) : -1},
                    {"portable", request.encode.portable},
                    {"rate_bound", request.rate_bound},
                    {"fisher", request.fisher}};  // the unit of predicted losses
    decides["hessians"] = collects ? 0 : xxh3(MappedFile(request.hessians).bytes());
    if (has_text)
      for (const std::string& file : request.given_text.files())
        decides["given"].push_back(xxh3(MappedFile(file).bytes()));
    if (collects || has_text)
      decides["text"] = {request.calibration.length, request.calibration.seed, request.calibration.sequences,
                         request.given_text.is_drawn};
    if (collects && !has_text) decides["temperatures"] = request.temperatures;
    const GainTunerOptions& tuner = request.tuner;
    if (method == MethodKind::kSlope)
      decides["slope"] = {to_json(request.slope),
                          tuner.steps,
                          tuner.batch,
                          tuner.row_rate,
                          tuner.small_rate,
                          request.cross_sequences,
                          request.codes.steps,
                          request.codes.batch,
                          request.codes.rate,
                          request.data_share.value_or(-1),
                          request.target_temperature.value_or(0),
                          request.statistics_count()};
    if (method == MethodKind::kTrace) decides["bits"] = {request.plan.low_bits, request.plan.high_bits};
    return Hasher().add(scoring_key).add(canonical_json(decides)).digest();
  }

  // Rank 0: looks at all that may be wrong with files before hours of computing.
  void begin() {
    if (request_.keep_artifacts) {
      FileRoles roles = request_.roles;
      for (const PlannedPoint& planned : plan_) roles.output("the kept artifact", artifact_path(planned));
      roles.check();
    }
    if (!request_.references.empty())
      results_.references = parse_reference_points(MappedFile(request_.references).bytes(), request_.references);
  }

  void find_points() {
    size_t found = 0;
    for (PlannedPoint& planned : plan_) {
      std::optional<SweepPoint> point = shared_->find<SweepPoint>({WorkKind::kScore, planned.key});
      planned.is_found = shared_->of_rank(ranks_.is_root() && point && is_artifact_kept(*point, planned), 0);
      if (!planned.is_found) continue;
      planned.point = std::move(*point);
      ++found;
      if (!request_.keep_artifacts || !planned.point.failure.empty() || !ranks_.is_root()) continue;
      const std::string path = artifact_path(planned);
      describe(planned.point, describe_artifact(MappedFile(path).bytes(), path), {});
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

  BpbReport score(const std::function<LoadedModel()>& load) {
    return times_.time("evaluation", [&] {
      return score_model(load(), request_.source, tokenizer_, byte_table_, request_.base.device, ranks_, console_)
          .report;
    });
  }

  void add_point(PlannedPoint& planned) {
    if (!is_calibrated_) job_.collect();
    is_calibrated_ = true;
    const double start = seconds_since_start();
    QuantizeRequest request = request_of(request_, planned.method);
    SweepPoint& point = planned.point;
    request.budget_bytes = point.budget_bytes;
    request.output = shared_->of_rank(artifact_path(planned), 0);  // all score it
    QuantizeOutcome outcome;
    try {
      job_.check_lower_bound(request);
      outcome = job_.fit(request);
    } catch (const CheckError& error) {  // a budget that cannot be met is a result
      point.failure = error.what();
    }
    if (point.failure.empty()) measure(request.output, outcome, point);
    point.seconds = seconds_since_start() - start;
    planned.is_found = true;
    if (!ranks_.is_root()) return;
    if (!request_.keep_artifacts) std::filesystem::remove(request.output);
    shared_->keep<SweepPoint>({WorkKind::kScore, planned.key}, point);
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
    describe(point, outcome.stored, reported_matrices(outcome.rate));
    if (outcome.rate.total.weights == 0) return;
    point.predicted_loss = outcome.rate.total.predicted_loss;
    if (outcome.rate.total.bound_bits) point.distance_bits_per_weight = outcome.rate.total.distance();
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
    if (!request_.base.keep_work) work_->remove();
    outcome.files.insert(outcome.files.begin(), {output(".json"), output(".csv")});
    outcome.results = std::move(results_);
    for (MethodKind method : request_.methods) {
      const std::string name = method_name(method);
      outcome.settings.push_back(resolved_settings("Method " + name, request_of(request_, method)));
      if (made_with_.contains(name)) outcome.settings.push_back(made_with_.at(name));
    }
    return outcome;
  }

  // What the artifact of a point holds, for the page.
  void describe(SweepPoint& point, const ArtifactSummary& artifact, const ReportedMatrices& reported) {
    point.tensors = report_tensors(artifact, reported);
    made_with_.emplace(
        point.method,
        provenance_settings("What artifacts of method " + point.method + " say they were made with", artifact));
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
  std::optional<WorkFolder> work_;  // from run() on
  std::optional<SharedWork> shared_;
  Tokenizer tokenizer_;
  ByteTable byte_table_;
  OpenedCheckpoint& source_;
  QuantizeJob job_;
  bool is_calibrated_ = false;
  uint64_t original_key_ = 0;
  std::vector<PlannedPoint> plan_;
  SweepResults results_;
  std::map<std::string, ReportSettings> made_with_;  // by method
};

}  // namespace

SweepOutcome run_sweep(const SweepRequest& request, OpenedCheckpoint& source, Ranks& ranks, StageTimes& times,
                       Console& console) {
  return Sweep(request, source, ranks, times, console).run();
}

}  // namespace thimble
