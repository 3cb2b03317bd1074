// quantize_command.cpp: `thimble quantize`: options, the call of the pipeline, and its report.
#include <fmt/format.h>

#include <algorithm>

#include "gptq/trace/sensitivity.h"
#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/commands/commands.h"
#include "quantizer/console/progress_bar.h"
#include "quantizer/pipeline/quantize_job.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/pipeline/run_plan.h"
#include "quantizer/pipeline/score_model.h"
#include "quantizer/reports/precision_text.h"
#include "quantizer/reports/quantize_report.h"
#include "quantizer/reports/report_data.h"

namespace thimble {
namespace {

constexpr int64_t kDefaultHighCount = 10;

struct Options {
  QuantizeRequest request;
  CodeOptions code;
  TokenSource source;  // optional: score checkpoint and artifact afterwards
  std::string bits = "5,6", high, codec, work_folder;
  std::string method = "slope";
  uint64_t budget = 0;
  std::optional<int64_t> min_elements;
  bool no_resume = false;
  MethodOptions methods;
};

void finish_method(const Options& options, bool runs, QuantizeRequest& request) {
  request.method = parse_method(options.method);
  const SlopeTarget& target = request.slope_target;
  if (request.method != MethodKind::kSlope) {
    const int64_t least = request.method == MethodKind::kNvfp4 ? kSlopeMinElements : request.plan.min_elements;
    request.plan.min_elements = options.min_elements.value_or(least);
    return;
  }
  request.fisher = request.fisher || (request.hessians.empty() && runs);  // a file of Hessians may do without
  request.plan.min_elements = options.min_elements.value_or(kSlopeMinElements);
  check_slope_options(request.slope);
  if (target.bpb_gap && !options.source.is_given())
    throw UsageError("--target-bpb-gap needs text to measure it on: --tokens or --text, and --tokenizer");
}

std::string work_folder(const Options& options) {
  if (options.no_resume) return "";
  return options.work_folder.empty() ? options.request.output + ".work" : options.work_folder;
}

void check_files(const Options& options) {
  FileRoles roles;
  register_files(options.request, roles);
  options.code.register_files(roles);
  options.source.register_files(roles);
  roles.output("--output", options.request.output);
  roles.output("--report", options.request.report);
  roles.work_folder(work_folder(options), WorkFolder::is_own);
  roles.check();
}

QuantizeRequest finish_request(const Options& options, const CommandLine& line, bool has_budget,
                               const std::optional<Spec>& spec) {
  QuantizeRequest request = options.request;
  if (has_budget) request.budget_bytes = options.budget;
  request.device = open_device(line.common, line.ranks);
  finish_effort(request);
  finish_cross_term(request, spec);
  finish_method(options, spec.has_value(), request);
  request.code_bytes = options.code.total_bytes();
  parse_bits(options.bits, request.plan);
  std::string high = !options.high.empty() ? options.high : has_budget ? "auto" : std::to_string(kDefaultHighCount);
  request.high_is_auto = high == "auto";
  if (request.high_is_auto && !has_budget) throw UsageError("--high auto needs a --budget to fit");
  if (!request.high_is_auto) request.plan.high_count = parse_integer(high, "--high", 0, 1'000'000);
  // Nothing else shows it.
  request.predicts_loss = !request.report.empty() || (line.common.json && request.method == MethodKind::kSlope);
  request.calibration.seed = line.common.seed;
  request.encode = encode_options_from(options.codec.empty() ? default_codec(request.method) : options.codec);
  request.work_folder = work_folder(options);
  options.source.check();
  finish_calibration_options(request, request.method == MethodKind::kSlope, spec);
  return request;
}

Json to_json(const LayerOutcome& layer) {
  Json json = {{"name", layer.name}, {"precision", layer.precision}, {"sensitivity", layer.sensitivity}};
  if (layer.output_fisher) json["output_fisher"] = *layer.output_fisher;
  if (layer.predicted_loss) json["predicted_loss"] = *layer.predicted_loss;
  if (const auto& report = layer.report)
    json.update({{"clip_fraction", report->clip_fraction},
                 {"weight_mse", report->weight_mse},
                 {"weighted_loss", report->weighted_loss},
                 {"damping", report->damping},
                 {"dead_columns", report->dead_columns}});
  if (const auto& report = layer.slope_report)
    json.update({{"weight_mse", report->weight_mse},
                 {"weighted_loss", report->weighted_loss},
                 {"estimated_bits", report->estimated_bits},
                 {"damping", report->damping},
                 {"dead_columns", report->dead_columns}});
  return json;
}

// Means of what --fisher collected outside the layers: the output head, and tables by the rows that tokens look up.
Json to_json(const LossStatistics& loss) {
  Json tables = Json::object();
  for (const auto& [table, fisher] : loss.lookup_fisher) tables[table]["lookup_fisher"] = fisher.mean();
  for (const auto& [table, counts] : loss.row_counts) {
    tables[table]["rows"] = counts.size();
    tables[table]["rows_seen"] = std::ranges::count_if(counts, [](int64_t count) { return count > 0; });
  }
  Json json = {{"tokens", loss.output_fisher.begin()->second.token_count}, {"tables", tables}};
  for (const auto& [name, hessian] : loss.head) {
    json["head"] = {{"name", name}, {"sensitivity", trace_sensitivity(*hessian)}};
    if (auto fisher = loss.output_fisher.find(name); fisher != loss.output_fisher.end())
      json["head"]["output_fisher"] = fisher->second.mean();
  }
  return json;
}

Json to_json(const DistillReport& report) {
  return {{"steps", report.steps},
          {"sequences", report.sequences},
          {"held_out", report.held_out},
          {"divergence_before", report.divergence_before},
          {"divergence_after", report.divergence_after},
          {"kept", report.is_kept}};
}

std::string distill_text(const QuantizeOutcome& outcome, bool is_wanted) {
  if (!outcome.distill) return is_wanted ? "no: needs at least two calibration sequences" : "no";
  const DistillReport& report = *outcome.distill;
  return fmt::format("KL {:.6f} to {:.6f} nats per token on {} held out{}", report.divergence_before,
                     report.divergence_after, counted(report.held_out, "sequence"), report.is_kept ? "" : ": not kept");
}

// What scoring needs, looked at before the hours of quantizing rather than after them.
void check_scoring(const OpenedCheckpoint& checkpoint, const TokenSource& source) {
  if (!source.is_given()) return;
  const Spec& spec = checkpoint.runnable();
  Tokenizer tokenizer = Tokenizer::load(source.tokenizer);
  check_vocab_size(tokenizer, spec.vocabulary(), checkpoint.path());
  source.context_for(spec, checkpoint.path());
  source.load(tokenizer, tokenizer.vocab_size());
}

// Checkpoint and artifact on the same text; empty when none was named.
using Scores = std::vector<ScoredModel>;

Scores score_before_and_after(const QuantizeRequest& request, OpenedCheckpoint& checkpoint, const TokenSource& source,
                              Ranks& ranks, StageTimes& times, Console& console) {
  if (!source.is_given()) return {};
  Tokenizer tokenizer = Tokenizer::load(source.tokenizer);
  ByteTable bytes(tokenizer);
  Scores scores;
  times.time("evaluation", [&] {
    auto score = [&](const std::function<LoadedModel()>& load) {
      scores.push_back(score_model(load, source, tokenizer, bytes, request.device, ranks, console));
    };
    score([&] { return load_model(checkpoint); });
    score([&] { return load_model(request.output, ""); });
  });
  return scores;
}

// What an artifact's size should not have surprised anybody with.
std::vector<std::string> size_warnings(const QuantizeRequest& request, const QuantizeOutcome& outcome) {
  std::vector<std::string> warnings;
  if (!outcome.fill_reason.empty())
    warnings.push_back(fmt::format("{} of {} used: {}", fill_text(*outcome.fill),
                                   request.budget_bytes ? "the budget is" : "what --bits-per-weight allows is",
                                   outcome.fill_reason));
  if (outcome.artifact_bytes > outcome.original_bytes)
    warnings.push_back(fmt::format("the artifact is larger than its checkpoint: {} against {}",
                                   bytes_text(outcome.artifact_bytes), bytes_text(outcome.original_bytes)));
  return warnings;
}

Json outcome_json(const QuantizeRequest& request, const QuantizeOutcome& outcome, const Scores& scores,
                  StageTimes& times, const std::string& device) {
  Json layers = Json::array();
  for (const LayerOutcome& layer : outcome.layers) layers.push_back(to_json(layer));
  Json json = {{"output", request.output},
               {"parameters", outcome.parameters},
               {"original_bytes", outcome.original_bytes},
               {"artifact_bytes", outcome.artifact_bytes},
               {"code_bytes", request.code_bytes},
               {"total_bytes", outcome.artifact_bytes + request.code_bytes},
               {"bits_per_parameter",
                8.0 * static_cast<double>(outcome.artifact_bytes) / static_cast<double>(outcome.parameters)},
               {"high_count", outcome.high_count},
               {"precisions", outcome.precisions},
               {"pruned_codes", outcome.pruned_codes},
               {"encodes", outcome.encodes},
               {"method", method_name(request.method)},
               {"device", device},
               {"layers", layers},
               {"seconds", times.to_json()},
               {"stage_peak_memory_bytes", times.memory_to_json()},
               {"peak_memory_bytes", times.peak_memory_bytes()}};
  if (request.method == MethodKind::kSlope) {
    json["effort"] = level_of(request.effort).name;
    json["log2_c"] = outcome.log2_c;
  }
  if (!request.report.empty()) json["report"] = request.report;
  if (outcome.rate.total.weights > 0) json["rate"] = to_json(outcome.rate, !outcome.loss.empty());
  if (outcome.distill) json["distill"] = to_json(*outcome.distill);
  for (const MemoryPlan& plan : outcome.memory_plans) json["memory_plans"].push_back(to_json(plan));
  if (request.budget_bytes) json["budget_bytes"] = *request.budget_bytes;
  if (!outcome.work_note.empty()) json["notes"].push_back(outcome.work_note);
  if (outcome.fill) json["fill"] = *outcome.fill;
  if (!outcome.fill_reason.empty()) json["fill_reason"] = outcome.fill_reason;
  json["warnings"] = size_warnings(request, outcome);
  if (!outcome.loss.empty()) json["loss_statistics"] = to_json(outcome.loss);
  if (!scores.empty()) {
    json["evaluation"] = {{"before", to_json(scores[0].report)}, {"after", to_json(scores[1].report)}};
    json["evaluation"].update(to_json(gap_between(scores[0].report, scores[1].report)));
    json["evaluation"]["notes"] = notes_json({scores[0].note});
  }
  return json;
}

// What became of the work folder, layers of method trace whose damping had to be raised, layers with columns that no
// token activated, and what text was scored.
std::vector<std::string> remarks_on(const QuantizeOutcome& outcome, const Scores& scores) {
  std::vector<std::string> remarks;
  if (!outcome.work_note.empty()) remarks.push_back(outcome.work_note);
  size_t dead_columns = 0;
  std::vector<std::string> with_dead_columns;
  auto add_dead = [&](const LayerOutcome& layer, const std::vector<int64_t>& dead) {
    dead_columns += dead.size();
    if (!dead.empty()) with_dead_columns.push_back(layer.name);
  };
  for (const LayerOutcome& layer : outcome.layers) {
    if (layer.slope_report) add_dead(layer, layer.slope_report->dead_columns);  // its damping differs by layer anyway
    if (!layer.report) continue;
    if (layer.report->damping > kTraceDamping * 1.0001)
      remarks.push_back(
          fmt::format("{}: damping raised to {:.3g} of the mean diagonal", layer.name, layer.report->damping));
    add_dead(layer, layer.report->dead_columns);
  }
  if (with_dead_columns.size() == 1)
    remarks.push_back(
        fmt::format("{}: {} never active, codes 0", with_dead_columns[0], counted(dead_columns, "input column")));
  else if (dead_columns > 0)
    remarks.push_back(fmt::format("{} of {} never active, codes 0", counted(dead_columns, "input column"),
                                  counted(with_dead_columns.size(), "layer")));
  if (!scores.empty() && scores[0].note) remarks.push_back(*scores[0].note);
  return remarks;
}

std::string outcome_text(const QuantizeRequest& request, const QuantizeOutcome& outcome, const Scores& scores,
                         StageTimes& times, const std::string& device, const std::string& written) {
  std::vector<std::pair<std::string, std::string>> facts = {{"quantized", request.checkpoint}};
  auto add = [&](const std::string& key, const std::string& value) { facts.emplace_back(key, value); };
  add("parameters", count_text(outcome.parameters));
  add("original", bytes_text(outcome.original_bytes));
  add("artifact",
      fmt::format("{} ({:.3f} bits per parameter)", bytes_text(outcome.artifact_bytes),
                  8.0 * static_cast<double>(outcome.artifact_bytes) / static_cast<double>(outcome.parameters)));
  if (request.code_bytes > 0) add("code", bytes_text(request.code_bytes));
  if (request.budget_bytes)
    add("budget", fmt::format("{} (fill {}, {} left)", bytes_text(*request.budget_bytes), fill_text(*outcome.fill),
                              bytes_text(*request.budget_bytes - request.code_bytes - outcome.artifact_bytes)));
  add("precision", precision_text(request, outcome));
  if (request.method == MethodKind::kSlope) add("effort", level_of(request.effort).name);
  if (request.method == MethodKind::kSlope) add("distilled", distill_text(outcome, request.tuner.steps > 0));
  if (outcome.pruned_codes > 0) add("pruned", counted(outcome.pruned_codes, "code") + " of +-1 set to 0");
  if (!scores.empty()) {
    add("BPB before", fmt::format("{:.6f}", scores[0].report.bits_per_byte()));
    add("BPB after", fmt::format("{:.6f} ({})", scores[1].report.bits_per_byte(),
                                 to_text(gap_between(scores[0].report, scores[1].report))));
    add("scored", scored_text(scores[1].report));
  }
  add("device", device);
  for (const StageTimes::Stage& stage : times.stages()) add(stage.name, duration_text(stage.seconds));
  add("peak memory", bytes_text(times.peak_memory_bytes()));
  add("written", written);
  std::string text = request.rate_bound ? to_text(outcome.rate) + "\n" : "";
  for (const std::string& warning : size_warnings(request, outcome)) text += "warning: " + warning + "\n";
  for (const std::string& remark : remarks_on(outcome, scores)) text += "note: " + remark + "\n";
  return text + facts_text(facts);
}

// Where one was asked for; then it is among the files written. What went wrong is for after the result.
std::optional<IoError> write_page(const QuantizePage& page, const std::string& path, std::string& written) {
  if (path.empty()) return std::nullopt;
  std::optional<IoError> unwritten = write_report(path, quantize_page(page));
  if (!unwritten) written += ", " + path;
  return unwritten;
}

void add_input_and_output(CLI::App& command, QuantizeRequest& request) {
  command.add_option("checkpoint", request.checkpoint, "Trained model (.safetensors, .pt, or .bin of llm.c)")
      ->required();
  command.add_option("-o,--output", request.output, "Artifact to write (.thmb)")
      ->check(file_name())
      ->type_name("FILE")
      ->required();
  add_config_option(command, request.config);
}

// What is wanted. Returns --budget.
CLI::Option* add_targets(CLI::App& command, Options& options) {
  CLI::Option* budget =
      command
          .add_option("--budget", options.budget, "Most bytes that artifact and code may take: 16000000, 16MB, 1.5e6")
          ->transform(byte_size())
          ->type_name("BYTES");
  options.code.add_to(command);
  SlopeTarget& target = options.request.slope_target;
  options.methods
      .add(command.add_option("--bits-per-weight", target.bits_per_weight,
                              "Slope: size of the artifact, by all parameters (without any target: about 3 bits per "
                              "quantized weight)"),
           {MethodKind::kSlope})
      ->check(finite_number(0.01, 32))
      ->type_name("X");
  CLI::Option* gap = options.methods.add(
      command.add_option("--target-bpb-gap", target.bpb_gap,
                         "Slope: the smallest artifact that loses at most this many bits per byte on the text to "
                         "score"),
      {MethodKind::kSlope});
  gap->check(finite_number(0, 100))->type_name("X");
  command
      .add_option("--method", options.method,
                  "slope: one slope of loss per bit for all weights; trace: int5 and int6 layers; nvfp4: FP4 in "
                  "blocks of 16")
      ->check(one_of(method_names()))
      ->type_name("NAME")
      ->capture_default_str();
  command.option_defaults()->group(kSlopeGroup);
  options.methods
      .add(command.add_option("--log2-step", target.log2_c, "Log2 of the common step c, instead of a search"),
           {MethodKind::kSlope})
      ->check(finite_number(-60, 60))
      ->type_name("X")
      ->excludes(gap);
  command.option_defaults()->group(kCommonGroup);
  return budget;
}

void add_method_options(CLI::App& command, Options& options) {
  add_slope_options(command, options.request, options.methods);
  add_trace_bits_option(command, options.bits, options.methods);
  command.option_defaults()->group(kTraceGroup);
  options.methods
      .add(command.add_option("--high", options.high,
                              "How many layers get the higher bits: a number, or auto for as many as fit (default: "
                              "auto with --budget, else 10)"),
           {MethodKind::kTrace})
      ->type_name("N");
  command.option_defaults()->group(kCommonGroup);
}

void add_encoding_options(CLI::App& command, Options& options) {
  command.option_defaults()->group(kEncodingGroup);
  command
      .add_option("--min-elements", options.min_elements,
                  fmt::format("Matrices of at most this many elements stay fp16 (default: {} with slope and nvfp4, {} "
                              "with trace)",
                              kSlopeMinElements, options.request.plan.min_elements))
      ->transform(whole_number(0, uint64_t{1} << 40))
      ->type_name("N");
  command
      .add_option("--codec", options.codec,
                  "brotli, zstd, xz, rans (for codes), none, or auto for the smallest per section (default: rans with "
                  "slope and nvfp4, brotli with trace)")
      ->check(one_of(codec_names()))
      ->type_name("NAME");
  command.option_defaults()->group(kCommonGroup);
}

void add_checks(CLI::App& command, QuantizeRequest& request) {
  command.option_defaults()->group(kEvaluationGroup);
  command.add_flag("--rate-bound", request.rate_bound,
                   "Show how far each matrix is from the fewest bits that its loss allows (rate-distortion bound)");
  command.add_flag("--check-finite", request.check_finite,
                   "Name the first tensor, or activation on the calibration tokens, and its place, that is NaN or "
                   "infinite (exit code 4)");
  command.option_defaults()->group(kCommonGroup);
}

}  // namespace

void add_quantize_command(CommandLine& line) {
  auto options = std::make_shared<Options>();
  QuantizeRequest& request = options->request;
  CLI::App* command = add_command(line, "quantize", "Fit a checkpoint into a byte budget",
                                  "thimble quantize final_model.pt -o model.thmb --budget 16MB --code train_gpt.py");
  add_input_and_output(*command, request);
  CLI::Option* budget = add_targets(*command, *options);
  options->source.add_to(*command, TokenSource::Need::kOptional);
  command
      ->add_option("--report", request.report,
                   "Write a page to look at (.html): bytes and loss by tensor, time, memory")
      ->check(file_name())
      ->type_name("FILE");
  add_encoding_options(*command, *options);
  add_calibration_options(*command, request);
  add_method_options(*command, *options);
  add_checks(*command, request);
  add_resume_options(*command, options->work_folder, request.keep_work);
  command->option_defaults()->group(kResumeGroup);
  command->add_flag("--no-resume", options->no_resume, "Keep no resumable results")
      ->excludes("--work-dir")
      ->excludes("--keep-work");
  command->callback([&line, options, budget, command] {
    line.uses_all_ranks = true;
    line.action = [&line, options, budget, command](Console& console) {
      options->methods.require_used({parse_method(options->method)});
      if (line.ranks.is_root()) check_files(*options);
      StageTimes times;
      OpenedCheckpoint checkpoint =
          times.time("open", [&] { return OpenedCheckpoint(options->request.checkpoint, options->request.config); });
      QuantizeRequest finished = finish_request(*options, line, budget->count() > 0, checkpoint.spec());
      std::jthread warming = warm_up(finished.device);
      if (finished.check_finite) require_finite_file(finished.checkpoint);
      check_scoring(checkpoint, options->source);
      if (finished.slope_target.bpb_gap)
        finished.bits_per_byte = [&](const RunnableModel& model, uint64_t key, const SharedWork& work) {
          return bits_per_byte(model, key, finished.device, options->source, work, console);
        };
      console.plan(quantize_plan(finished, options->source.is_given()));
      QuantizeOutcome outcome = run_quantize(finished, checkpoint, line.ranks, times, console);
      Scores scores = score_before_and_after(finished, checkpoint, options->source, line.ranks, times, console);
      if (!line.ranks.is_root()) return;
      std::string device = device_text(finished.device, line.ranks), written = finished.output;
      std::vector<std::string> remarks = size_warnings(finished, outcome);
      std::ranges::move(remarks_on(outcome, scores), std::back_inserter(remarks));
      const std::optional<IoError> unwritten =
          write_page(collect_page(finished, outcome, scores, times, device, std::move(remarks), *command),
                     finished.report, written);
      console.result(outcome_text(finished, outcome, scores, times, device, written),
                     outcome_json(finished, outcome, scores, times, device));
      if (unwritten) throw IoError(*unwritten);
    };
  });
}

}  // namespace thimble
