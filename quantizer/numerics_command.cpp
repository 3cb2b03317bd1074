// numerics_command.cpp: `thimble numerics`: do the low-precision operators compute what they say, and how fast?
#include <algorithm>

#include "quantizer/commands.h"
#include "quantizer/numerics_report.h"
#include "runtime/cuda_language_model.h"
#include "runtime/cuda_operators.h"

namespace thimble {
namespace {

constexpr const char* kAllOperators = "all";

struct Options {
  std::vector<std::string> operators = {kAllOperators};
  int64_t max_elements = int64_t{1} << 40;
};

std::string operator_names() {
  std::string names = kAllOperators;
  for (Operator op : kOperators) names += ", " + std::string(operator_name(op));
  return names;
}

std::vector<Operator> parse_operators(const std::vector<std::string>& names) {
  std::vector<Operator> chosen;
  for (const std::string& name : names) {
    bool is_known = name == kAllOperators;
    for (Operator op : kOperators) {
      if (name != kAllOperators && name != operator_name(op)) continue;
      is_known = true;
      if (std::ranges::find(chosen, op) == chosen.end()) chosen.push_back(op);
    }
    if (!is_known) throw UsageError("--op is '" + name + "', allowed are " + operator_names());
  }
  return chosen;
}

NumericsReport run_numerics(const NumericsRequest& request, const Device& device, Progress& progress) {
  if (!device.is_cuda)
    return check_operators(
        request,
        [](const OperatorCall& call) {
          run_operator(call);
          return std::nullopt;
        },
        progress);
  int ordinal = device.ordinals[0];
  double bandwidth = cuda_copy_bandwidth(ordinal);
  NumericsReport report = check_operators(
      request, [&](const OperatorCall& call) { return run_operator_on_cuda(ordinal, call); }, progress);
  report.copy_bandwidth = bandwidth;
  return report;
}

}  // namespace

void add_numerics_command(CommandLine& line) {
  auto options = std::make_shared<Options>();
  CLI::App* command = add_command(line, "numerics", "Check low-precision operators against float64",
                                  "thimble numerics --op softmax --op layer_norm --device cuda");
  command->add_option("--op", options->operators, "Operators to check: " + operator_names())->capture_default_str();
  command->add_option("--max-elements", options->max_elements, "Leave out cases of more elements (of up to 16,777,216)")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 40));
  command->callback([&line, options] {
    line.action = [&line, options](Console& console) {
      NumericsRequest request{parse_operators(options->operators), options->max_elements, line.common.seed};
      Device device = open_device(line.common);
      NumericsReport report = run_numerics(request, device, console.progress());
      // Arithmetic is the operators' own, whatever --numerics says of models.
      std::string name = device.is_cuda ? cuda_arithmetic(device.ordinals[0]) : device.name();
      Json json = to_json(report);
      json["device"] = name;
      console.result(to_text(report) + "on " + name + "\n", json);
      require_passed(report);
    };
  });
}

}  // namespace thimble
