// quantize_command.cpp: `thimble quantize`: options, the call of the pipeline, and its report.
#include <fmt/format.h>

#include "quantizer/checkpoints/finite_input.h"
#include "quantizer/checkpoints/loader_script.h"
#include "quantizer/checkpoints/model_source.h"
#include "quantizer/commands/commands.h"
#include "quantizer/formats/gguf_tokenizer_json.h"
#include "quantizer/pipeline/quantize_job.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/pipeline/run_plan.h"
#include "quantizer/pipeline/score_model.h"
#include "quantizer/reports/quantize_report.h"
#include "runtime/base/checked.h"
#include "runtime/base/count_text.h"
#include "runtime/base/parallel.h"

namespace thimble {
namespace {

constexpr int64_t kDefaultHighCount = 10;

struct QuantizeArguments {
  QuantizeRequest request;
  CodeOptions code;
  bool with_loader = false;
  TokenSource source;  // optional: score checkpoint and artifact afterwards
  EncodingOptions encoding;
  std::string bits = "5,6", high, work_folder;
  std::string method = "slope";
  bool no_resume = false;
  MethodOptions methods;
};

std::string work_folder(const QuantizeArguments& options) {
  if (options.no_resume) return "";
  return options.work_folder.empty() ? options.request.output + ".work" : options.work_folder;
}

void check_files(const QuantizeArguments& options) {
  FileRoles roles;
  register_files(options.request, roles);
  options.code.register_files(roles);
  options.source.register_files(roles);
  roles.output("--output", options.request.output);
  roles.output("--report", options.request.report);
  roles.work_folder(work_folder(options), WorkFolder::is_own);
  roles.check();
}

QuantizeRequest finish_request(const QuantizeArguments& options, const CommandLine& line,
                               const std::optional<Spec>& spec) {
  QuantizeRequest request = options.request;
  const bool has_budget = request.budget_bytes.has_value();
  request.device = open_device(line.common, line.ranks);
  request.calibration.seed = line.common.seed;
  choose_method(request, parse_method(options.method), options.encoding);
  finish_options(request, {request.method}, options.bits, spec);
  if (request.slope_target.bpb_gap && !options.source.is_given())
    throw UsageError("--target-bpb-gap needs text to measure it on: --tokens or --text, and --tokenizer");
  request.code_bytes = options.code.total_bytes();
  if (options.with_loader) {
    if (request.method != MethodKind::kSlope)
      throw UsageError("--with-loader goes with --method slope: thimble loader reads no other artifacts");
    request.code_bytes = add_or_throw(request.code_bytes, most_loader_bytes(), "--code-bytes");
  }
  std::string high = !options.high.empty() ? options.high : has_budget ? "auto" : std::to_string(kDefaultHighCount);
  request.high_is_auto = high == "auto";
  if (request.high_is_auto && !has_budget) throw UsageError("--high auto needs a --budget to fit");
  if (!request.high_is_auto) request.plan.high_count = parse_integer(high, "--high", 0, 1'000'000);
  // Nothing else shows it.
  request.predicts_loss = !request.report.empty() || (line.common.json && request.method == MethodKind::kSlope);
  request.work_folder = work_folder(options);
  options.source.check(!request.given_text.texts.empty());
  return request;
}

// What scoring needs, looked at before the hours of quantizing rather than after them. How many positions the windows
// have.
int64_t check_scoring(const OpenedCheckpoint& checkpoint, const TokenSource& source) {
  if (!source.is_given()) return 0;
  const Spec& spec = checkpoint.runnable();
  Tokenizer tokenizer = load_tokenizer(source.tokenizer);
  check_vocab_size(tokenizer, spec.vocabulary(), checkpoint.path());
  const int64_t context = source.context_for(spec, checkpoint.path());
  const int64_t targets = std::ssize(source.load(tokenizer, tokenizer.vocab_size())) - 1;
  const int64_t stride = source.evaluation_options(spec, context).stride;
  return (std::min(targets, source.max_targets.value_or(targets)) + stride - 1) / stride * context;
}

// Of a run on a CPU that is worth telling; said before it begins.
std::optional<RunSeconds> tell_expected(const QuantizeRequest& request, const OpenedCheckpoint& checkpoint,
                                        int64_t scored_positions, Console& console) {
  constexpr double kToldSeconds = 60;
  if (request.device.is_cuda || !request.hessians.empty()) return std::nullopt;
  const RunWork work = work_of_run(request, *checkpoint.runnable().network, scored_positions);
  const RunSeconds expected = expected_seconds(work, measure_machine(request.slope.trellis_bits));
  if (expected.total() >= kToldSeconds)
    console.note(fmt::format("expected to take about {} on {}: text {}, statistics {}, search {}, scores {}",
                             duration_text(expected.total()), counted(thread_count(), "thread"),
                             duration_text(expected.writing), duration_text(expected.statistics),
                             duration_text(expected.searching), duration_text(expected.scoring)));
  return expected;
}

// Checkpoint and artifact on the same text; empty when none was named.
std::vector<ScoredModel> score_before_and_after(const QuantizeRequest& request, OpenedCheckpoint& checkpoint,
                                                const TokenSource& source, Ranks& ranks, StageTimes& times,
                                                Console& console) {
  if (!source.is_given()) return {};
  Tokenizer tokenizer = load_tokenizer(source.tokenizer);
  ByteTable bytes(tokenizer);
  return times.time("evaluation", [&] {
    std::vector<ScoredModel> scores;
    auto score = [&](LoadedModel loaded) {
      scores.push_back(score_model(std::move(loaded), source, tokenizer, bytes, request.device, ranks, console));
    };
    score(load_model(checkpoint));
    score(load_model(request.output, ""));
    return scores;
  });
}

// What is wanted.
void add_targets(CLI::App& command, QuantizeArguments& options) {
  add_bytes(command, "--budget", options.request.budget_bytes,
            "Most bytes that artifact and code may take: 16000000, 16MB, 1.5e6");
  options.code.add_to(command);
  command.add_flag("--with-loader", options.with_loader, "Leave room in the budget for what thimble loader writes");
  SlopeTarget& target = options.request.slope_target;
  auto add_number = [&](const char* name, std::optional<double>& value, double low, double high, const char* text) {
    return options.methods.add(command.add_option(name, value, text), MethodKind::kSlope)
        ->check(finite_number(low, high))
        ->type_name("X");
  };
  add_number("--bits-per-weight", target.bits_per_weight, 0.01, 32,
             "Slope: size of the artifact, by all parameters (without any target: about 3 bits per quantized weight)");
  CLI::Option* gap =
      add_number("--target-bpb-gap", target.bpb_gap, 0, 100,
                 "Slope: the smallest artifact that loses at most this many bits per byte on the text to score");
  add_choice(
      command, "--method", options.method,
      "slope: one slope of loss per bit for all weights; trace: int5 and int6 layers; nvfp4: FP4 in blocks of 16",
      method_names())
      ->capture_default_str();
  command.option_defaults()->group(kSlopeGroup);
  add_number("--log2-step", target.log2_c, -60, 60, "Log2 of the common step c, instead of a search")->excludes(gap);
  command.option_defaults()->group(kCommonGroup);
}

void add_method_options(CLI::App& command, QuantizeArguments& options) {
  add_slope_options(command, options.request, options.methods);
  add_trace_bits_option(command, options.bits, options.methods);
  command.option_defaults()->group(kTraceGroup);
  options.methods
      .add(command.add_option("--high", options.high,
                              "How many layers get the higher bits: a number, or auto for as many as fit (default: "
                              "auto with --budget, else 10)"),
           MethodKind::kTrace)
      ->type_name("N");
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
  auto options = std::make_shared<QuantizeArguments>();
  QuantizeRequest& request = options->request;
  CLI::App* command = add_command(line, "quantize", "Fit a checkpoint into a byte budget",
                                  "thimble quantize final_model.pt -o model.thmb --budget 16MB --code train_gpt.py");
  add_checkpoint(*command, request.checkpoint);
  add_file(*command, "-o,--output", request.output, "Artifact to write (.thmb)")->required();
  add_config_option(*command, request.config);
  add_targets(*command, *options);
  options->source.add_to(*command, TokenSource::Need::kOptional);
  add_file(*command, "--report", request.report,
           "Write a page to look at (.html): bytes and loss by tensor, time, memory");
  add_encoding_options(*command, options->encoding);
  add_calibration_options(*command, request);
  add_method_options(*command, *options);
  add_checks(*command, request);
  add_resume_options(*command, options->work_folder, request.keep_work);
  command->option_defaults()->group(kResumeGroup);
  command->add_flag("--no-resume", options->no_resume, "Keep no resumable results")
      ->excludes("--work-dir")
      ->excludes("--keep-work");
  set_collective_action(line, *command, [&line, options, command](Console& console) {
    options->methods.require_used({parse_method(options->method)});
    GivenText& text = options->request.given_text;
    options->source.find_tokenizer({&options->request.checkpoint, 1},
                                   text.texts.empty() ? TokenSource::Need::kOptional : TokenSource::Need::kRequired);
    text.tokenizer = options->source.tokenizer;
    if (line.ranks.is_root()) check_files(*options);
    const std::jthread warming = warm_up(line.common.device, DeviceWork::kSolving, line.ranks.local_rank());
    StageTimes times;
    OpenedCheckpoint checkpoint =
        times.time("open", [&] { return OpenedCheckpoint(options->request.checkpoint, options->request.config); });
    QuantizeRequest finished = finish_request(*options, line, checkpoint.spec());
    if (finished.check_finite) require_finite_file(finished.checkpoint);
    const int64_t scored = check_scoring(checkpoint, options->source);
    if (finished.slope_target.bpb_gap)
      finished.bits_per_byte = [&](const RunnableModel& model, uint64_t key, const SharedWork& work) {
        return bits_per_byte(model, key, finished.device, options->source, work, console);
      };
    const std::optional<RunSeconds> expected = tell_expected(finished, checkpoint, scored, console);
    console.plan(quantize_plan(finished, options->source.is_given(), expected), expected.has_value());
    QuantizeReport report;
    report.outcome = run_quantize(finished, checkpoint, line.ranks, times, console);
    report.scores = score_before_and_after(finished, checkpoint, options->source, line.ranks, times, console);
    if (!line.ranks.is_root()) return;
    report.request = finished;
    report.device = device_text(finished.device, line.ranks);
    std::vector<std::string> files = {finished.output};
    auto page = [&] {
      return quantize_page(
          report, report_run(times, report.device, *command,
                             {resolved_settings("As resolved", finished),
                              provenance_settings("What the artifact says it was made with", report.outcome.stored)}));
    };
    conclude(finished.report, page, files,
             [&] { console.result(to_text(report, times, files), to_json(report, times)); });
  });
}

}  // namespace thimble
