// sweep_command.cpp: `thimble sweep`: bytes against bits per byte over methods and budgets, as a table and a plot.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "quantizer/commands/commands.h"
#include "quantizer/commands/sweep_job.h"
#include "quantizer/pipeline/quantize_options.h"
#include "quantizer/pipeline/run_plan.h"

namespace thimble {
namespace {

// Without --budgets and --bits-per-weight.
constexpr const char* kDefaultBitsPerWeight = "2,2.5,3,4,5";
constexpr double kLeastBits = 0.01, kMostBits = 32;

struct SweepArguments {
  SweepRequest request;
  std::string methods = "slope,trace", budgets, bits_per_weight, bits = "5,6", work_folder;
  MethodOptions method_options;
};

// The texts between commas.
std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

double parse_bits_per_weight(const std::string& text) {
  const std::optional<double> value = parse_finite(text);
  if (!value || *value < kLeastBits || *value > kMostBits)
    throw UsageError(fmt::format("--bits-per-weight is '{}', allowed are numbers from {} to {} with commas between",
                                 text, kLeastBits, kMostBits));
  return *value;
}

uint64_t parse_budget(const std::string& text) {
  const std::optional<uint64_t> bytes = parse_bytes(text);
  if (!bytes || *bytes == 0)
    throw UsageError(fmt::format("--budgets is '{}', allowed are {}, with commas between", text, kAllowedBytes));
  return *bytes;
}

void register_files(SweepRequest& request) {
  register_files(request.base, request.roles);
  request.source.register_files(request.roles);
  request.roles.input("the --reference", request.references);
  for (const char* extension : kSweepOutputs) request.roles.output("--output", request.prefix + extension);
  request.roles.output("--report", request.base.report);
  request.roles.work_folder(request.base.work_folder, WorkFolder::is_own);
}

// What names files: looked at before any is opened.
SweepRequest files_of(const SweepArguments& options, const CommandLine& line) {
  SweepRequest request = options.request;
  request.source.find_tokenizer({&request.base.checkpoint, 1}, TokenSource::Need::kRequired);
  request.base.given_text.tokenizer = request.source.tokenizer;
  request.base.work_folder = options.work_folder.empty() ? request.prefix + ".work" : options.work_folder;
  register_files(request);
  if (line.ranks.is_root()) request.roles.check();
  return request;
}

void finish_request(const SweepArguments& options, const CommandLine& line, const std::optional<Spec>& spec,
                    SweepRequest& request) {
  for (const std::string& name : parts_of(options.methods)) {
    request.methods.push_back(parse_method(name));
    if (std::ranges::count(request.methods, request.methods.back()) > 1)
      throw UsageError("--methods is '" + options.methods + "', which names '" + name + "' twice");
  }
  options.method_options.require_used(request.methods);
  const bool has_slope = std::ranges::count(request.methods, MethodKind::kSlope) > 0;
  request.base.method = has_slope ? MethodKind::kSlope : MethodKind::kTrace;
  request.base.device = open_device(line.common, line.ranks);
  request.base.calibration.seed = line.common.seed;
  finish_options(request.base, request.methods, options.bits, spec);
  if (!options.budgets.empty())
    for (const std::string& text : parts_of(options.budgets)) request.budgets_bytes.push_back(parse_budget(text));
  else
    for (const std::string& text :
         parts_of(options.bits_per_weight.empty() ? kDefaultBitsPerWeight : options.bits_per_weight))
      request.bits_per_weight.push_back(parse_bits_per_weight(text));
}

void add_options(CLI::App& command, SweepArguments& options) {
  SweepRequest& request = options.request;
  add_checkpoint(command, request.base.checkpoint);
  add_file(command, "-o,--output", request.prefix,
           "Beginning of all outputs' names: OUTPUT.json, .csv, .gp (gnuplot), .svg, .png")
      ->type_name("PREFIX")
      ->required();
  add_config_option(command, request.base.config);
  CLI::Option* budgets =
      command
          .add_option("--budgets", options.budgets, "Most bytes of the artifact, with commas between: 9.2MB,11149629")
          ->type_name("BYTES,...");
  command
      .add_option("--bits-per-weight", options.bits_per_weight,
                  std::string("The same by all parameters of the model (default: ") + kDefaultBitsPerWeight + ")")
      ->type_name("X,...")
      ->excludes(budgets);
  command.add_option("--methods", options.methods, "Methods to compare, with commas between: slope, trace, nvfp4")
      ->type_name("NAME,...")
      ->capture_default_str();
  request.source.add_to(command, TokenSource::Need::kRequired);
  add_file(command, "--reference", request.references, "Further points to draw: a CSV file of label,bytes,bpb");
  add_file(command, "--report", request.base.report,
           "Write a page to look at (.html): the curve, and bits, bytes and loss by tensor");
  command.add_flag("--keep-artifacts", request.keep_artifacts, "Keep them, as OUTPUT-METHOD-BUDGET.thmb");
  add_encoding_options(command, request.encoding);
  add_calibration_options(command, request.base);
  add_slope_options(command, request.base, options.method_options);
  add_trace_bits_option(command, options.bits, options.method_options);
  command.option_defaults()->group(kEvaluationGroup);
  command.add_flag("--rate-bound", request.base.rate_bound,
                   "Also report the distance of each point from the rate-distortion bound");
  add_resume_options(command, options.work_folder, request.base.keep_work);
}

std::string outcome_text(const SweepOutcome& outcome, const StageTimes& times, const std::string& device) {
  std::vector<std::pair<std::string, std::string>> facts = {{"device", device}};
  for (const StageTimes::Stage& stage : times.stages())
    facts.emplace_back(stage.name, fmt::format("{:.1f}s", stage.seconds));
  facts.emplace_back("written", fmt::format("{}", fmt::join(outcome.files, ", ")));
  return to_text(outcome.results) + "\n" + facts_text(facts);
}

Json outcome_json(const SweepOutcome& outcome, const StageTimes& times, const std::string& device) {
  Json json = to_json(outcome.results);
  json["device"] = device;
  json.update(times.to_json());
  json["files"] = outcome.files;
  return json;
}

}  // namespace

void add_sweep_command(CommandLine& line) {
  auto options = std::make_shared<SweepArguments>();
  CLI::App* command = add_command(line, "sweep", "Draw bytes against bits per byte over methods and budgets",
                                  "thimble sweep final_model.pt -o curve --budgets 9200000,11149629,13538545 "
                                  "--tokens val.bin --tokenizer sp.model");
  add_options(*command, *options);
  set_collective_action(line, *command, [&line, options, command](Console& console) {
    SweepRequest request = files_of(*options, line);
    const std::jthread warming = warm_up(line.common.device, DeviceWork::kSolving, line.ranks.local_rank());
    StageTimes times;
    OpenedCheckpoint source =
        times.time("open", [&] { return OpenedCheckpoint(request.base.checkpoint, request.base.config); });
    finish_request(*options, line, source.spec(), request);
    console.plan(sweep_plan(
        request.base, request.methods.size() * std::max(request.budgets_bytes.size(), request.bits_per_weight.size())));
    SweepOutcome outcome = run_sweep(request, source, line.ranks, times, console);
    if (!line.ranks.is_root()) return;
    const std::string device = device_text(request.base.device, line.ranks);
    auto page = [&] { return sweep_page(outcome.results, report_run(times, device, *command, outcome.settings)); };
    conclude(request.base.report, page, outcome.files,
             [&] { console.result(outcome_text(outcome, times, device), outcome_json(outcome, times, device)); });
  });
}

}  // namespace thimble
