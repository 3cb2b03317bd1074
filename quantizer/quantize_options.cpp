// quantize_options.cpp: see quantize_options.h.
#include "quantizer/quantize_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "quantizer/commands.h"
#include "runtime/trellis.h"

namespace thimble {

Method parse_method(const std::string& name) {
  if (name == "slope") return Method::kSlope;
  if (name == "trace") return Method::kTrace;
  if (name == "nvfp4") return Method::kNvfp4;
  throw UsageError("method '" + name + "' is unknown, allowed: slope, trace, nvfp4");
}

std::string method_name(Method method) {
  switch (method) {
    case Method::kSlope: return "slope";
    case Method::kTrace: return "trace";
    case Method::kNvfp4: break;
  }
  return "nvfp4";
}

std::string default_codec(Method method) { return method == Method::kTrace ? "brotli" : "rans"; }

int64_t parse_integer(const std::string& text, const std::string& option, int64_t low, int64_t high) {
  int64_t value = 0;
  auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || stop != text.data() + text.size() || value < low || value > high)
    throw UsageError(fmt::format("{} is '{}', allowed is an integer from {} to {}", option, text, low, high));
  return value;
}

void parse_bits(const std::string& text, TracePlanOptions& plan) {
  size_t comma = text.find(',');
  plan.low_bits = static_cast<int>(parse_integer(text.substr(0, comma), "--bits", 2, 8));
  plan.high_bits = comma == std::string::npos ? plan.low_bits
                                              : static_cast<int>(parse_integer(text.substr(comma + 1), "--bits", 2, 8));
  if (plan.high_bits < plan.low_bits)
    throw UsageError("--bits is '" + text + "', the second must not be below the first");
}

void add_calibration_options(CLI::App& command, QuantizeRequest& request) {
  CalibrationOptions& calibration = request.calibration;
  calibration.sequences = calibration.length = 0;  // not given: finish_calibration_options()
  command
      .add_option("--calibration-sequences", calibration.sequences,
                  "Sequences the model generates for calibration (default: 128 with slope, 64 with trace)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command
      .add_option("--calibration-length", calibration.length,
                  "Tokens per calibration sequence (default: 1024 with slope, 2048 with trace; fewer "
                  "when the model has fewer positions)")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 20));
  command
      .add_option("--temperature", request.temperatures,
                  "Sampling temperature of the calibration text; of several, with commas between, sequences take one "
                  "after another in turn")
      ->delimiter(',')
      ->check(finite_number(0, 100))
      ->capture_default_str();
  command
      .add_option("--calibration-tokens", request.calibration_tokens,
                  "Token shard to calibrate on instead: whole sequences of --calibration-length tokens")
      ->check(file_name());
  command.add_option("--save-calibration", request.save_calibration, "Write the calibration tokens to this shard")
      ->check(file_name());
  command.add_option("--hessians", request.hessians, "Use these Hessians (safetensors) instead of collecting any")
      ->check(file_name());
  command.add_option("--save-hessians", request.save_hessians, "Write the Hessians to this safetensors file")
      ->check(file_name());
  command.add_flag("--fisher", request.fisher,
                   "Also collect the output Fisher, the output head's Hessian and counts of tokens, for "
                   "--save-hessians and --json");
}

void register_files(const QuantizeRequest& request, FileRoles& roles) {
  roles.model(request.checkpoint, request.config);
  roles.input("the --calibration-tokens", request.calibration_tokens);
  roles.input("the --hessians", request.hessians);
  roles.output("--save-calibration", request.save_calibration);
  roles.output("--save-hessians", request.save_hessians);
}

void finish_calibration_options(QuantizeRequest& request, bool has_slope, const std::optional<AnyConfig>& config) {
  CalibrationOptions& calibration = request.calibration;
  if (calibration.sequences == 0) calibration.sequences = has_slope ? 128 : 64;
  const int64_t most = config ? most_positions(*config).value_or(INT64_MAX) : INT64_MAX;
  if (calibration.length == 0) calibration.length = std::min<int64_t>(has_slope ? 1024 : 2048, most);
  if (config && (request.hessians.empty() || !request.calibration_tokens.empty()))
    check_context(*config, calibration.length, request.checkpoint);

  const bool has_idle_tokens = !request.calibration_tokens.empty() && !has_slope;
  if (!request.hessians.empty() && (has_idle_tokens || !request.save_calibration.empty()))
    throw UsageError(
        "--hessians replaces calibration: --save-calibration does not apply, nor do --calibration-tokens with "
        "the methods trace and nvfp4");
}

void add_slope_options(CLI::App& command, QuantizeRequest& request) {
  SlopeOptions& slope = request.slope;
  command
      .add_option("--trellis-bits", slope.trellis_bits,
                  "Slope: log2 of the states of the trellis, 0 or 2 to 8; decoding is as fast with any")
      ->capture_default_str();
  command
      .add_option("--rate-weight", slope.rate_weight,
                  "Slope: how much rounding prefers short codes; 0 rounds to the nearest")
      ->check(finite_number(0, 100))
      ->capture_default_str();
  command
      .add_option("--distill-steps", request.distill.steps,
                  "Slope: steps of tuning gains and small tensors on the calibration tokens, 0 for none (default: 32, "
                  "on the CPU 24)")
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  command
      .add_option("--distill-batch", request.distill.batch,
                  "Slope: calibration sequences of such a step (default: 8, on the CPU 2)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  command
      .add_option("--distill-row-rate", request.distill.row_rate,
                  "Slope: how far a step moves the logarithm of a row's gain")
      ->check(finite_number(0, 1))
      ->capture_default_str();
  command
      .add_option("--distill-small-rate", request.distill.small_rate,
                  "Slope: how far a step moves small tensors, relative to their size")
      ->check(finite_number(0, 1))
      ->capture_default_str();
  command
      .add_option("--shrinkage", slope.shrinkage, "Slope: how strongly steps are kept below the size of the weights")
      ->check(finite_number(0, 1000))
      ->capture_default_str();
  command
      .add_option("--row-power", slope.row_power,
                  "Slope: how far steps follow the loss of each row; 0: one weight for all rows of a matrix")
      ->check(finite_number(0, 1))
      ->capture_default_str();
  command
      .add_option(
          "--cross-term", request.cross_term,
          "Slope: how far each layer makes up for the errors of those before it, 0 to 1; runs both models layer by "
          "layer (default: 1 for a golf-gpt with calibration text, else 0)")
      ->check(finite_number(0, 1));
  command
      .add_option("--cross-damping", slope.cross_damping,
                  "Slope: added to Hessians, relative to their mean diagonal, for --cross-term")
      ->check(finite_number(0, 100))
      ->capture_default_str();
  std::map<std::string, ColumnOrder> orders;
  for (size_t i = 0; i < kColumnOrders.size(); ++i) orders[kColumnOrders[i]] = static_cast<ColumnOrder>(i);
  command
      .add_option("--column-order", slope.column_order,
                  "Slope: columns by their Hessian's diagonal: descending, ascending or natural (default: descending)")
      ->transform(CLI::CheckedTransformer(orders));
  command.add_option("--damping", slope.damping, "Slope: added to Hessians, relative to their mean diagonal")
      ->check(finite_number(0, 100))
      ->capture_default_str();
}

namespace {

double cross_term(const QuantizeRequest& request, const std::optional<AnyConfig>& config) {
  const bool has_text = request.hessians.empty() || !request.calibration_tokens.empty();
  if (request.cross_term.value_or(0) > 0) {
    if (!has_text) throw UsageError("--cross-term needs calibration text: beside --hessians, --calibration-tokens");
    if (config && !has_gradients(*config))
      throw UsageError(request.checkpoint + ": --cross-term is there for golf-gpt models alone");
  }
  return request.cross_term.value_or(config && has_gradients(*config) && has_text ? 1 : 0);
}

}  // namespace

void fit_to_family(QuantizeRequest& request, const std::optional<AnyConfig>& config) {
  request.slope.cross_term = cross_term(request, config);
  if (!config) return;
  const bool is_calibrated = request.hessians.empty();
  if (has_gradients(*config)) return;
  auto refuse = [&](const std::string& option) {
    throw UsageError(request.checkpoint + ": " + option + " needs gradients, which there are of golf-gpt models alone");
  };
  if (request.fisher && is_calibrated) refuse("--fisher");
  if (request.distill.steps.value_or(0) > 0) refuse("--distill-steps above 0");
  request.distill.steps = 0;
}

void check_slope_options(const SlopeOptions& slope) {
  if (!Trellis::has_bits(slope.trellis_bits))
    throw UsageError(
        fmt::format("--trellis-bits is {}, allowed are 0 and 2 to {}", slope.trellis_bits, kMaxTrellisBits));
}

}  // namespace thimble
