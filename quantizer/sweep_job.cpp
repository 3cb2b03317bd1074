// sweep_job.cpp: the steps of a sweep, in order.
#include "quantizer/sweep_job.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <filesystem>

#include "quantizer/gnuplot.h"
#include "quantizer/interrupt_notice.h"
#include "quantizer/quantize_options.h"
#include "quantizer/score_model.h"
#include "quantizer/sweep_plot.h"
#include "runtime/atomic_file.h"
#include "runtime/file.h"
#include "runtime/hash.h"

namespace thimble {
namespace {

constexpr const char* kOriginal = "original";

QuantizeRequest request_of(const SweepRequest& sweep, Method method) {
  QuantizeRequest request = sweep.base;
  request.method = method;
  request.high_is_auto = true;
  const int64_t default_min_elements = method == Method::kTrace ? request.plan.min_elements : kSlopeMinElements;
  request.plan.min_elements = sweep.min_elements.value_or(default_min_elements);
  if (method != Method::kSlope && !request.hessians.empty()) request.calibration_tokens.clear();  // to distil on
  request.encode = encode_options_from(sweep.codec.empty() ? default_codec(method) : sweep.codec);
  return request;
}

class Sweep {
 public:
  Sweep(const SweepRequest& request, Ranks& ranks, StageTimes& times, Console& console)
      : request_(request),
        ranks_(ranks),
        times_(times),
        console_(console),
        tokenizer_(Tokenizer::load(request.source.tokenizer)),
        byte_table_(tokenizer_),
        job_(request.base, ranks, times, console) {}

  SweepOutcome run() {
    const AnyConfig& config = require_runnable(job_.source());
    check_vocab_size(tokenizer_, vocab_size(config), request_.base.checkpoint);
    context_ = request_.source.context_for(config, request_.base.checkpoint);
    const std::vector<uint16_t> tokens = request_.source.load(tokenizer_, vocab_size(config));
    results_.checkpoint = request_.base.checkpoint;
    results_.parameters = job_.parameters();
    find_keys(tokens);
    if (ranks_.is_root()) begin();
    const InterruptNotice notice(ranks_.is_root() ? console_.resume_line(request_.base.work_folder) : "");
    share_points();
    if (!results_.original) score_original();
    for (Method method : request_.methods)
      for (uint64_t budget : budgets())
        if (!results_.find(method_name(method), budget)) add_point(method, budget);
    return ranks_.is_root() ? finish() : SweepOutcome{};
  }

 private:
  std::string output(const std::string& extension) const { return request_.prefix + extension; }

  // Ascending, each once.
  std::vector<uint64_t> budgets() const {
    std::vector<uint64_t> budgets = request_.budgets_bytes;
    for (double bits : request_.bits_per_weight) budgets.push_back(bytes_at(bits, results_.parameters));
    std::ranges::sort(budgets);
    budgets.erase(std::unique(budgets.begin(), budgets.end()), budgets.end());
    return budgets;
  }

  // Where the artifact of a point lies while it is scored.
  std::string artifact_path(Method method, uint64_t budget) const {
    const std::string name = fmt::format("{}-{}.thmb", method_name(method), budget);
    return request_.keep_artifacts ? request_.prefix + "-" + name : request_.base.work_folder + "/" + name;
  }

  void find_keys(const std::vector<uint16_t>& tokens) {
    const TokenSource& source = request_.source;
    Hasher scoring;
    scoring.add(job_.key())
        .add(xxh3(MappedFile(source.tokenizer).bytes()))
        .add(std::as_bytes(std::span(tokens)))
        .add(static_cast<uint64_t>(context_))
        .add(static_cast<uint64_t>(source.stride))
        .add(static_cast<uint64_t>(source.max_targets.value_or(0)));
    const uint64_t scores = scoring.digest();
    results_.keys[kOriginal] = hex64(scores);
    for (Method method : request_.methods) results_.keys[method_name(method)] = hex64(method_key(scores, method));
  }

  uint64_t method_key(uint64_t scores, Method method) const {
    Hasher hasher;
    hasher.add(scores);
    const QuantizeRequest request = request_of(request_, method);
    const CalibrationOptions& calibration = request.calibration;
    auto add_count = [&](int64_t value) { hasher.add(static_cast<uint64_t>(value)); };
    for (const std::string& file : {request.hessians, request.calibration_tokens})
      hasher.add(file.empty() ? 0 : xxh3(MappedFile(file).bytes()));
    if (request.hessians.empty() || !request.calibration_tokens.empty()) add_count(calibration.length);
    if (request.hessians.empty() && request.calibration_tokens.empty()) {
      hasher.add(calibration.seed);
      for (double temperature : request.temperatures) hasher.add(std::bit_cast<uint64_t>(temperature));
      add_count(calibration.sequences);
    }
    add_count(request.plan.min_elements);
    add_count(request.encode.codec ? static_cast<int64_t>(*request.encode.codec) : -1);
    add_count(request.rate_bound ? 1 : 0);
    add_count(request.fisher ? 1 : 0);  // the unit of predicted losses
    if (method == Method::kSlope) {
      hasher.add(canonical_json(to_json(request.slope)));
      const GainTunerOptions tuner = gain_tuner_options(request.distill, request.device);
      add_count(tuner.steps);
      add_count(tuner.batch);
      for (double rate : {tuner.row_rate, tuner.small_rate}) hasher.add(std::bit_cast<uint64_t>(rate));
    } else if (method == Method::kTrace) {
      add_count(request.plan.low_bits);
      add_count(request.plan.high_bits);
    }
    return hasher.digest();
  }

  // Rank 0: looks at all that may be wrong with files before hours of computing.
  void begin() {
    if (request_.keep_artifacts) {
      FileRoles roles = request_.roles;
      for (Method method : request_.methods)
        for (uint64_t budget : budgets()) roles.output("the kept artifact", artifact_path(method, budget));
      roles.check();
    }
    if (!request_.references.empty())
      results_.references = parse_reference_points(MappedFile(request_.references).bytes(), request_.references);
    if (!file_exists(output(".json"))) return;
    const SweepResults kept = parse_sweep_results(MappedFile(output(".json")).bytes(), output(".json"));
    auto is_same = [&](const std::string& key) {
      auto found = kept.keys.find(key);
      return found != kept.keys.end() && found->second == results_.keys.at(key);
    };
    if (is_same(kOriginal)) results_.original = kept.original;
    for (Method method : request_.methods)
      for (uint64_t budget : budgets()) {
        const SweepPoint* point = is_same(method_name(method)) ? kept.find(method_name(method), budget) : nullptr;
        if (point &&
            (!request_.keep_artifacts || !point->failure.empty() || file_exists(artifact_path(method, budget))))
          results_.points.push_back(*point);
      }
    console_.note(fmt::format("{}: {} of {} points are there already", output(".json"), results_.points.size(),
                              request_.methods.size() * budgets().size()));
  }

  // What is left to do is the same on all ranks.
  void share_points() {
    const std::string json = to_json(results_).dump(-1, ' ', false, Json::error_handler_t::replace);
    ByteVector bytes(as_bytes_of(json).begin(), as_bytes_of(json).end());
    ranks_.broadcast(bytes);
    if (!ranks_.is_root()) results_ = parse_sweep_results(bytes, "rank 0");
  }

  BpbReport score(const std::string& path, const std::string& config) {
    return times_.time("evaluation", [&] {
      return score_model(path, config, request_.source, tokenizer_, byte_table_, request_.base.device, ranks_, console_)
          .report;
    });
  }

  void score_original() {
    const BpbReport report = score(request_.base.checkpoint, request_.base.config);
    results_.original = {job_.source().file.file_bytes(), report.bits_per_byte(),
                         fmt::format("{}, context {}, stride {}", report.scope(), report.context, report.stride)};
    save();
  }

  void add_point(Method method, uint64_t budget) {
    if (!is_calibrated_) job_.collect();
    is_calibrated_ = true;
    const double start = seconds_since_start();
    QuantizeRequest request = request_of(request_, method);
    request.budget_bytes = budget;
    request.output = artifact_path(method, budget);
    SweepPoint point;
    point.method = method_name(method);
    point.budget_bytes = budget;
    const QuantizeOutcome outcome = fit(request, point);
    if (point.failure.empty()) {
      point.bits_per_byte = score(request.output, "").bits_per_byte();
      point.artifact_bytes = outcome.artifact_bytes;
      if (outcome.rate.total.weights > 0) {
        point.predicted_loss = outcome.rate.total.predicted_loss;
        if (outcome.rate.total.bound_bits) point.distance_bits_per_weight = outcome.rate.total.distance();
      }
    }
    point.seconds = seconds_since_start() - start;
    results_.points.push_back(point);
    if (!ranks_.is_root()) return;
    if (!request_.keep_artifacts) std::filesystem::remove(request.output);
    save();
    console_.note(point.failure.empty()
                      ? fmt::format("{} at {}: {}, {:.6f} bits per byte", point.method, bytes_text(budget),
                                    bytes_text(point.artifact_bytes), point.bits_per_byte)
                      : fmt::format("{} at {}: {}", point.method, bytes_text(budget), point.failure));
  }

  // A budget that cannot be met is a result, which all ranks learn.
  QuantizeOutcome fit(const QuantizeRequest& request, SweepPoint& point) {
    QuantizeOutcome outcome;
    try {
      if (ranks_.is_root()) job_.check_lower_bound(request);
      outcome = job_.fit(request);
    } catch (const CheckError& error) {
      job_.dismiss();
      point.failure = error.what();
    }
    ByteVector failure(as_bytes_of(point.failure).begin(), as_bytes_of(point.failure).end());
    ranks_.broadcast(failure);
    point.failure = as_text(failure);
    return outcome;
  }

  // Rank 0: points in the order of methods and budgets, whatever order they were found in.
  void save() {
    if (!ranks_.is_root()) return;
    std::ranges::stable_sort(results_.points, {}, [&](const SweepPoint& point) {
      auto method = std::ranges::find(request_.methods, point.method, method_name);
      return std::pair(method - request_.methods.begin(), point.budget_bytes);
    });
    write_file_atomically(output(".json"),
                          to_json(results_).dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
    write_file_atomically(output(".csv"), to_csv(results_));
  }

  SweepOutcome finish() {
    save();  // with the references of this run
    SweepOutcome outcome;
    outcome.files = {output(".json"), output(".csv")};
    auto met = std::ranges::find_if(results_.points, [](const SweepPoint& point) { return point.failure.empty(); });
    if (met == results_.points.end())
      throw CheckError("no budget can be met; at " + bytes_text(results_.points.back().budget_bytes) + ": " +
                       results_.points.back().failure);
    draw(outcome);
    if (const std::string note = job_.work_note(); !note.empty()) outcome.notes.push_back(note);
    if (!request_.base.keep_work) WorkFolder(request_.base.work_folder).remove();
    outcome.results = std::move(results_);
    return outcome;
  }

  void draw(SweepOutcome& outcome) const {
    const std::filesystem::path prefix(request_.prefix);
    const std::string name = prefix.filename().string(), script = sweep_script(results_, name);
    write_file_atomically(output(".gp"), script);
    outcome.files.push_back(output(".gp"));
    if (!has_gnuplot()) {
      outcome.notes.push_back(fmt::format("gnuplot is not installed: no {} and {}; {} draws them", output(".svg"),
                                          output(".png"), output(".gp")));
      return;
    }
    run_gnuplot(script, {name + ".svg", name + ".png"}, prefix.parent_path().string());
    outcome.files.insert(outcome.files.end(), {output(".svg"), output(".png")});
  }

  const SweepRequest& request_;
  Ranks& ranks_;
  StageTimes& times_;
  Console& console_;
  Tokenizer tokenizer_;
  ByteTable byte_table_;
  QuantizeJob job_;
  int64_t context_ = 0;  // of scoring
  bool is_calibrated_ = false;
  SweepResults results_;
};

}  // namespace

SweepOutcome run_sweep(const SweepRequest& request, Ranks& ranks, StageTimes& times, Console& console) {
  return Sweep(request, ranks, times, console).run();
}

}  // namespace thimble
