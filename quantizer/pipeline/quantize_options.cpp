// quantize_options.cpp: see quantize_options.h.
#include "quantizer/pipeline/quantize_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "packer/codecs/codec.h"
#include "quantizer/checkpoints/checkpoint_files.h"
#include "quantizer/console/help_formatter.h"
#include "quantizer/console/option_values.h"
#include "quantizer/console/suggestion.h"
#include "quantizer/methods/slope/distill_input.h"
#include "quantizer/pipeline/token_source.h"
#include "runtime/codes/trellis.h"

namespace thimble {
namespace {

// "5,6" -> low and high bits; "5" -> both the same.
void parse_bits(const std::string& text, TracePlanOptions& plan) {
  size_t comma = text.find(',');
  plan.low_bits = static_cast<int>(parse_integer(text.substr(0, comma), "--bits", 2, 8));
  plan.high_bits = comma == std::string::npos ? plan.low_bits
                                              : static_cast<int>(parse_integer(text.substr(comma + 1), "--bits", 2, 8));
  if (plan.high_bits < plan.low_bits)
    throw UsageError("--bits is '" + text + "', the second must not be below the first");
}

// The counts that follow from the effort.
void finish_effort(QuantizeRequest& request, const std::optional<Spec>& spec) {
  const EffortLevel level = level_at(request.effort, request.calibration.length);
  int64_t parameters = 0;
  if (spec)
    for (const Parameter& parameter : spec->network->parameters) parameters += element_count(parameter.shape);
  request.tuner.steps = request.distill_steps.value_or(level.distill_steps);
  request.tuner.batch = request.distill_batch.value_or(level.distill_batch);
  const bool learns = !request.distill_steps && parameters <= level.most_learned;
  const int64_t steps = request.given_text.is_given() ? level.given_learn_steps : level.learn_steps;
  request.codes.steps = request.learn_steps.value_or(learns ? steps : 0);
  request.codes.batch = request.learn_batch.value_or(level.learn_batch);
  request.learns_rows = parameters > kFreeCodes;
  if (request.codes.steps > 0 && !request.statistics_sequences)
    request.statistics_sequences = level.calibration_sequences;
  request.cross_sequences = std::min(level.cross_sequences, request.statistics_sequences.value_or(INT64_MAX));
}

// The default depends on whether there is calibration text.
void finish_cross_term(QuantizeRequest& request, const std::optional<Spec>& spec) {
  const bool has_text = request.hessians.empty() || request.given_text.is_given();
  if (request.cross_term.value_or(0) > 0 && !has_text)
    throw UsageError(
        "--cross-term needs calibration text: beside --hessians, --calibration-text or --calibration-tokens");
  request.slope.cross_term = request.cross_term.value_or(spec && has_text ? 1 : 0);
}

// Of method slope, as many as its effort reads.
int64_t usual_slope_sequences(const QuantizeRequest& request) {
  const EffortLevel level = level_at(request.effort, request.calibration.length);
  if (request.codes.steps == 0) return level.calibration_sequences;
  const int64_t learned = request.codes.steps * request.codes.batch;
  return std::max(level.calibration_sequences, request.given_text.is_given()
                                                   ? learned + held_out_sequences(INT64_MAX, /*is_given=*/true)
                                                   : level.written_sequences);
}

// How long calibration sequences are, and how many. A method slope among others distils on tokens beside a file of
// Hessians.
void finish_calibration(QuantizeRequest& request, bool has_slope, const std::optional<Spec>& spec) {
  CalibrationOptions& calibration = request.calibration;
  GivenText& text = request.given_text;
  const bool has_text = request.hessians.empty() || text.is_given();
  for (const auto& [option, value] : {std::pair("--calibration-sequences", calibration.sequences),
                                      std::pair("--calibration-length", calibration.length)})
    if (!has_text && value != 0)
      throw UsageError(std::string(option) +
                       " has no effect with --hessians and neither --calibration-text nor --calibration-tokens");
  if (calibration.length == 0) calibration.length = spec ? spec->usual_length(kDefaultContext) : kDefaultContext;
  if (has_slope) finish_effort(request, spec);
  if (spec && has_text) check_context(*spec, calibration.length, request.checkpoint);

  if (!request.hessians.empty() && text.is_given() && !has_slope)
    throw UsageError(std::string("--hessians replaces ") +
                     (text.texts.empty() ? "--calibration-tokens" : "--calibration-text") +
                     " with the methods trace and nvfp4: give one of them");
  const int64_t usual_sequences = has_slope ? usual_slope_sequences(request) : 64;
  if (text.is_given())
    plan_given_text(text, calibration, usual_sequences);
  else if (calibration.sequences == 0)
    calibration.sequences = usual_sequences;
}

}  // namespace

const std::vector<std::string>& method_names() {
  static const std::vector<std::string> names = {"slope", "trace", "nvfp4"};
  return names;
}

MethodKind parse_method(const std::string& name) {
  const auto found = std::ranges::find(method_names(), name);
  if (found == method_names().end()) throw UsageError("method " + not_one_of(name, method_names()));
  return static_cast<MethodKind>(found - method_names().begin());
}

std::string method_name(MethodKind method) { return method_names().at(static_cast<size_t>(method)); }

int64_t parse_integer(const std::string& text, const std::string& option, int64_t low, int64_t high) {
  const std::optional<uint64_t> value = parse_whole_number(text);
  if (!value || *value > static_cast<uint64_t>(high) || static_cast<int64_t>(*value) < low)
    throw UsageError(fmt::format("{} is '{}', allowed is an integer from {} to {}", option, text, low, high));
  return static_cast<int64_t>(*value);
}

void add_calibration_options(CLI::App& command, QuantizeRequest& request) {
  CalibrationOptions& calibration = request.calibration;
  calibration.sequences = calibration.length = 0;  // not given: finish_options()
  command.option_defaults()->group(kCalibrationGroup);
  auto add_files = [&](const char* name, std::vector<std::string>& files, const char* description) {
    return repeatable(command.add_option(name, files, description))->check(file_name())->type_name("FILE");
  };
  CLI::Option* text = add_files("--calibration-text", request.given_text.texts,
                                "UTF-8 text to calibrate on instead of what the model writes, best of the kind that it "
                                "was trained on: a file or a glob pattern in quotes, of any size; may be repeated");
  CLI::Option* tokens = add_files("--calibration-tokens", request.given_text.shards,
                                  "The same as token shards; one alone, without --calibration-sequences, is read as "
                                  "whole sequences of --calibration-length tokens");
  tokens->excludes(text);
  CLI::Option* hessians =
      add_file(command, "--hessians", request.hessians, "Use these Hessians (safetensors) instead of collecting any");
  // What says how the model writes text says nothing where it writes none.
  add_count(command, "--calibration-sequences", calibration.sequences,
            "Sequences that the model writes, or that are drawn from the text given (default: by --effort with slope, "
            "64 without)",
            1, 1 << 20);
  add_count(command, "--calibration-length", calibration.length,
            "Tokens per calibration sequence (default: 2048, or what the model has of positions)", 2, 1 << 20);
  add_count(command, "--statistics-sequences", request.statistics_sequences,
            "Of these, the first that statistics and cross terms read (default: all; where codes are learned, by "
            "--effort)",
            1, 1 << 20);
  repeatable(command.add_option("--temperature", request.temperatures,
                                "Sampling temperature of the calibration text; of several, with commas between, "
                                "sequences take one after another in turn"))
      ->delimiter(',')
      ->check(finite_number(0, 100))
      ->type_name("X,...")
      ->default_str("0.8")
      ->excludes(text)
      ->excludes(tokens)
      ->excludes(hessians);
  add_file(command, "--save-calibration", request.save_calibration, "Write the calibration tokens to this shard")
      ->excludes(hessians);
  add_file(command, "--save-hessians", request.save_hessians, "Write the Hessians to this safetensors file");
  command.add_flag("--fisher", request.fisher,
                   "Also collect the output Fisher, the output head's Hessian and counts of tokens, for "
                   "--save-hessians and --json");
  command.option_defaults()->group(kCommonGroup);
}

void register_files(const QuantizeRequest& request, FileRoles& roles) {
  roles.model(request.checkpoint, request.config);
  for (const std::string& file : files_of_folder(request.checkpoint)) roles.input("the model's file", file);
  request.given_text.register_files(roles);
  roles.input("the --hessians", request.hessians);
  roles.output("--save-calibration", request.save_calibration);
  roles.output("--save-hessians", request.save_hessians);
}

void add_encoding_options(CLI::App& command, EncodingOptions& encoding) {
  std::vector<std::string> codecs = {"auto"};
  for (const Codec& codec : all_codecs()) codecs.emplace_back(codec.name());
  command.option_defaults()->group(kEncodingGroup);
  add_count(command, "--min-elements", encoding.min_elements,
            fmt::format("Matrices of at most this many elements stay fp16 (default: {} with slope and nvfp4, {} with "
                        "trace)",
                        kSlopeMinElements, TracePlanOptions{}.min_elements),
            0, uint64_t{1} << 40);
  add_choice(command, "--codec", encoding.codec,
             "brotli, zstd, xz, rans (for codes), none, or auto for the smallest per section (default: rans with slope "
             "and nvfp4, brotli with trace)",
             codecs);
  command.add_flag("--portable", encoding.portable,
                   "Use the weight coder for codes and no codec for the rest: a decoder then needs no compression "
                   "library (phones, browsers)");
  command.option_defaults()->group(kCommonGroup);
}

void choose_method(QuantizeRequest& request, MethodKind method, const EncodingOptions& encoding) {
  const bool is_trace = method == MethodKind::kTrace;
  request.method = method;
  request.plan.min_elements = encoding.min_elements.value_or(is_trace ? request.plan.min_elements : kSlopeMinElements);
  if (encoding.portable && !encoding.codec.empty() && encoding.codec != "rans")
    throw UsageError("--portable goes with --codec rans, not with " + encoding.codec);
  const bool uses_rans = encoding.portable || !is_trace;
  request.encode = encode_options_from(!encoding.codec.empty() ? encoding.codec : uses_rans ? "rans" : "brotli");
  request.encode.portable = encoding.portable;
}

CLI::Option* MethodOptions::add(CLI::Option* option, MethodKind method) {
  entries_.emplace_back(option, method);
  return option;
}

void MethodOptions::require_used(const std::vector<MethodKind>& chosen) const {
  for (const auto& [option, method] : entries_) {
    if (option->count() == 0 || std::ranges::find(chosen, method) != chosen.end()) continue;
    std::vector<std::string> names;
    for (MethodKind other : chosen) names.push_back(method_name(other));
    throw UsageError(fmt::format("{} is for --method {}: it has no effect with {}", option->get_name(),
                                 method_name(method), fmt::join(names, " or ")));
  }
}

void add_slope_options(CLI::App& command, QuantizeRequest& request, MethodOptions& methods) {
  command.option_defaults()->group(kSlopeGroup);
  auto add = [&](const char* name, auto& value, const std::string& text) {
    return methods.add(command.add_option(name, value, text), MethodKind::kSlope);
  };
  auto add_number = [&](const char* name, double& value, double most, const std::string& text) {
    add(name, value, text)->check(finite_number(0, most))->type_name("X")->capture_default_str();
  };
  SlopeOptions& slope = request.slope;
  std::vector<std::string> efforts;
  for (const EffortLevel& level : kEffortLevels) efforts.emplace_back(level.name);
  auto set_effort = [&request, efforts](const std::string& name) {
    request.asked_effort = static_cast<Effort>(std::ranges::find(efforts, name) - efforts.begin());
  };
  methods
      .add(command.add_option_function<std::string>(
               "--effort", set_effort,
               "How much calibration text, cross terms and distillation: fast, default or best; the same on every "
               "device (default: fast on the CPU, else default)"),
           MethodKind::kSlope)
      ->check(one_of(efforts))
      ->type_name("NAME");
  auto add_whole = [&](const char* name, auto& value, uint64_t low, uint64_t high, const std::string& text) {
    return methods.add(add_count(command, name, value, text, low, high), {MethodKind::kSlope});
  };
  add_whole("--trellis-bits", slope.trellis_bits, 0, kMaxTrellisBits,
            "Log2 of the states of the trellis, 0 or 2 to 8; decoding is as fast with any")
      ->capture_default_str();
  add_number("--rate-weight", slope.rate_weight, 100, "How much rounding prefers short codes; 0 rounds to the nearest");
  add_whole("--distill-steps", request.distill_steps, 0, 1 << 20,
            "Steps of tuning gains and small tensors on the calibration tokens, 0 for none (default: by --effort)");
  add_whole("--distill-batch", request.distill_batch, 1, 1 << 20,
            "Calibration sequences of such a step (default: by --effort)");
  add_number("--distill-row-rate", request.tuner.row_rate, 1, "How far a step moves the logarithm of a row's gain");
  add_number("--distill-small-rate", request.tuner.small_rate, 1,
             "How far a step moves small tensors, relative to their size");
  auto add_fitted = [&](const char* name, std::optional<double>& value, double low, double high,
                        const std::string& text) {
    auto set = [&value](const std::string& given) {
      value.reset();
      if (given != "auto") value = std::stod(given);
    };
    const CLI::Validator in_range = finite_number(low, high);
    methods.add(command.add_option_function<std::string>(name, set, text), MethodKind::kSlope)
        ->check([in_range](const std::string& given) {
          const std::string error = given == "auto" ? "" : in_range(given);
          return error.empty() ? error : error + ", or auto";
        })
        ->type_name("X|auto");
  };
  add_fitted("--target-temperature", request.target_temperature, 0.5, 2,
             "Temperature of the original's predictions that gains and codes are tuned to, 0.5 to 2; auto: the one "
             "that predicts the given text best; without text, what a context beyond the one that the model was "
             "trained at calls for; 1 where nothing tells (default: auto)");
  add_fitted("--data-share", request.data_share, 0, 0.99,
             "What the token that does follow counts for in given text, beside what the original predicts, where gains "
             "are tuned and codes learned, 0 to 0.99; auto: as much as that temperature is below 1, at most 0.1 "
             "(default: auto)");
  add_whole("--learn-steps", request.learn_steps, 0, 1 << 20,
            "Steps of learning codes on the calibration tokens instead of tuning gains, 0 for none (default: by "
            "--effort and the model's size; none where --distill-steps is given)");
  add_whole("--learn-batch", request.learn_batch, 1, 1 << 20,
            "Calibration sequences of such a step (default: by --effort)");
  add_whole("--learn-block", request.codes.block, 1, INT64_MAX,
            "Most weights whose codes are learned at a time: of larger models, block by block, each for so many steps")
      ->capture_default_str();
  add_number("--learn-rate", request.codes.rate, 1, "How many levels such a step moves a weight");
  add_number("--shrinkage", slope.shrinkage, 1000, "How strongly steps are kept below the size of the weights");
  add_number("--row-power", slope.row_power, 1,
             "How far steps follow the loss of each row; 0: one weight for all rows of a matrix");
  add("--cross-term", request.cross_term,
      "How far each layer makes up for the errors of those before it, 0 to 1; runs both models layer by layer "
      "(default: 1 with calibration text, else 0)")
      ->check(finite_number(0, 1))
      ->type_name("X");
  add_number("--cross-damping", slope.cross_damping, 100,
             "Added to Hessians, relative to their mean diagonal, for --cross-term");
  const std::vector<std::string> orders(kColumnOrders.begin(), kColumnOrders.end());
  auto set_order = [&slope, orders](const std::string& name) {
    slope.column_order = static_cast<ColumnOrder>(std::ranges::find(orders, name) - orders.begin());
  };
  methods
      .add(command.add_option_function<std::string>(
               "--column-order", set_order, "Columns by their Hessian's diagonal: descending, ascending or natural"),
           MethodKind::kSlope)
      ->check(one_of(orders))
      ->type_name("NAME")
      ->default_str(column_order_name(slope.column_order));
  add_number("--damping", slope.damping, 100, "Added to Hessians, relative to their mean diagonal");
  command.option_defaults()->group(kCommonGroup);
}

void add_trace_bits_option(CLI::App& command, std::string& bits, MethodOptions& methods) {
  command.option_defaults()->group(kTraceGroup);
  methods
      .add(command.add_option("--bits", bits, "Bits of the less and the more sensitive layers, or of all"),
           MethodKind::kTrace)
      ->type_name("N,N")
      ->capture_default_str();
  command.option_defaults()->group(kCommonGroup);
}

void add_resume_options(CLI::App& command, std::string& work_folder, bool& keep_work) {
  command.option_defaults()->group(kResumeGroup);
  add_file(command, "--work-dir", work_folder, "Folder of resumable results (default: OUTPUT.work)")
      ->type_name("FOLDER");
  command.add_flag("--keep-work", keep_work, "Keep that folder after success");
  command.option_defaults()->group(kCommonGroup);
}

void finish_options(QuantizeRequest& request, const std::vector<MethodKind>& methods, const std::string& bits,
                    const std::optional<Spec>& spec) {
  const bool has_slope = std::ranges::count(methods, MethodKind::kSlope) > 0;
  parse_bits(bits, request.plan);
  request.effort = request.asked_effort.value_or(request.device.is_cuda ? Effort::kDefault : Effort::kFast);
  finish_cross_term(request, spec);
  request.fisher |= has_slope && spec && request.hessians.empty();  // a file of Hessians may do without
  if (!Trellis::has_bits(request.slope.trellis_bits))
    throw UsageError(
        fmt::format("--trellis-bits is {}, allowed are 0 and 2 to {}", request.slope.trellis_bits, kMaxTrellisBits));
  finish_calibration(request, has_slope, spec);
  const bool is_given = request.given_text.is_given();
  if (request.data_share.value_or(0) > 0 && !is_given)
    throw UsageError("--data-share needs text that somebody gives: --calibration-text or --calibration-tokens");
  if (!is_given) request.data_share = 0;
  if (is_given || request.target_temperature) return;
  const int64_t length = request.calibration.length;
  const bool writes = has_slope && spec && request.hessians.empty() && request.tuner.steps + request.codes.steps > 0;
  const int64_t home = writes ? home_context(*spec->network, length) : length;
  if (home < length && home > 1)  // one token predicts nothing
    request.home_length = home;
  else
    request.target_temperature = 1;
}

}  // namespace thimble
