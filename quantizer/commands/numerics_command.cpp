// numerics_command.cpp: `thimble numerics`: do the low-precision operators compute what they say, and how fast?
#include <fmt/ranges.h>

#include <algorithm>

#include "quantizer/commands/commands.h"
#include "quantizer/pipeline/numerics_stages.h"
#include "quantizer/reports/numerics_report.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/operators/cuda_operators.h"

namespace thimble {
namespace {

constexpr const char* kAllOperators = "all";
constexpr const char* kOperatorStage = "operators";
constexpr const char* kNvfp4Stage = "nvfp4";
constexpr const char* kMoeStage = "moe";

struct Options {
  std::vector<std::string> operators = {kAllOperators};
  std::optional<int64_t> max_elements;
  std::string stage = kOperatorStage, inject;
};

// What --op takes.
std::vector<std::string> operator_names() {
  std::vector<std::string> names = {kAllOperators};
  for (Operator op : kOperators) names.emplace_back(operator_name(op));
  return names;
}

// In the order named, each once.
std::vector<Operator> parse_operators(const std::vector<std::string>& names) {
  std::vector<Operator> chosen;
  for (const std::string& name : names)
    for (Operator op : kOperators)
      if ((name == kAllOperators || name == operator_name(op)) && std::ranges::find(chosen, op) == chosen.end())
        chosen.push_back(op);
  return chosen;
}

std::optional<MoeStage> parse_fault(const Options& options) {
  if (options.inject.empty()) return std::nullopt;
  if (options.stage != kMoeStage) throw UsageError("--inject is for --stage moe");
  return static_cast<MoeStage>(std::ranges::find(kMoeStages, options.inject) - kMoeStages.begin());
}

// Prints the check and throws when it failed.
template <typename Check>
void conclude(const Check& check, const std::string& device, Console& console) {
  Json json = to_json(check);
  json["device"] = device;
  console.result(to_text(check) + "on " + device + "\n", json);
  require_passed(check);
}

NumericsReport run_numerics(const NumericsRequest& request, const Device& device, Progress& progress) {
  const std::optional<int> ordinal = device.is_cuda ? std::optional(device.ordinals[0]) : std::nullopt;
  const std::optional<double> bandwidth = ordinal ? std::optional(cuda_copy_bandwidth(*ordinal)) : std::nullopt;
  auto run = [&](const OperatorCall& call) -> std::optional<double> {
    if (ordinal) return run_operator_on_cuda(*ordinal, call);
    run_operator(call);
    return std::nullopt;
  };
  NumericsReport report = check_operators(request, run, progress);
  report.copy_bandwidth = bandwidth;
  return report;
}

}  // namespace

void add_numerics_command(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(line, "numerics", "Check low-precision operators against float64",
                                  "thimble numerics --op softmax --op layer_norm --device cuda");
  CLI::Option* operators = repeatable(command->add_option("--op", options->operators,
                                                          fmt::format("Operator to check, once for each of several: {}",
                                                                      fmt::join(operator_names(), ", "))))
                               ->check(one_of(operator_names()))
                               ->type_name("NAME")
                               ->capture_default_str();
  CLI::Option* most = add_count(*command, "--max-elements", options->max_elements,
                                "Leave out cases of more elements (of up to 16,777,216)", 1, uint64_t{1} << 40);
  add_choice(*command, "--stage", options->stage,
             "What to check: operators; nvfp4: scale layout, uniform test and products; moe: a mixture-of-experts "
             "layer in NVFP4, stage by stage",
             {kOperatorStage, kNvfp4Stage, kMoeStage})
      ->capture_default_str();
  add_choice(*command, "--inject", options->inject,
             "Moe: make one element of this stage wrong, to see it found: router, x-scales, x-codes, l1, activation, "
             "h-scales, h-codes, l2 or scatter",
             {kMoeStages.begin(), kMoeStages.end()});
  set_action(line, *command, [&line, options, operators, most](Console& console) {
    for (const CLI::Option* option : {operators, most})
      if (option->count() > 0 && options->stage != kOperatorStage)
        throw UsageError(option->get_name() + " is for --stage operators: it has no effect with " + options->stage);
    NumericsRequest request{parse_operators(options->operators), options->max_elements.value_or(INT64_MAX),
                            line.common.seed};
    const std::optional<MoeStage> fault = parse_fault(*options);
    Device device = open_device(line.common);
    // Arithmetic is the operators' own, whatever --numerics says of models.
    const std::string place = device.is_cuda ? cuda_arithmetic(device.ordinals[0]) : device.name();
    if (options->stage == kOperatorStage)
      return conclude(run_numerics(request, device, console.progress()), place, console);
    const Nvfp4Product product = choose_nvfp4_product(device);
    if (options->stage == kMoeStage) return conclude(check_moe(product, line.common.seed, fault), place, console);
    conclude(check_nvfp4(product, line.common.seed), place, console);
  });
}

}  // namespace thimble
