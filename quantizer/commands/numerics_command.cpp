// numerics_command.cpp: `thimble numerics`: do the low-precision operators compute what they say, and how fast? Do the
// formats and products of NVFP4, and a mixture-of-experts layer stage by stage?
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "eval/numerics/moe_reference.h"
#include "quantizer/commands/commands.h"
#include "quantizer/reports/numerics_report.h"
#include "runtime/codes/nvfp4_scale_layout.h"
#include "runtime/cuda/cuda_models.h"
#include "runtime/cuda/kernels/cuda_nvfp4.h"
#include "runtime/operators/cuda_operators.h"

namespace thimble {
namespace {

constexpr const char* kAllOperators = "all";
constexpr const char* kOperatorStage = "operators";
constexpr const char* kNvfp4Stage = "nvfp4";
constexpr const char* kMoeStage = "moe";

constexpr int64_t kTokens = 96, kModelDim = 256, kHiddenDim = 128, kExperts = 8, kTopK = 2;

// A product of two operands in NVFP4, and what computes it: the CPU; on a device cuBLASLt where it can, else the
// dequantizing product.
struct Nvfp4Product {
  MultiplyNvfp4 multiply;
  std::string name;
};

// Layout round trips over all shapes; the uniform test (all codes 1.5, scales 1, K = 32: 72 everywhere) over a few; and
// products of random operands against float64 on their values, as shares of 2^-23 * K * sum of magnitudes.
struct Nvfp4Check {
  ScaleLayoutCheck layout;
  int64_t uniform_shapes = 0, uniform_errors = 0;
  int64_t product_shapes = 0;
  double worst_product_share = 0;
  std::string product;
  bool passed() const { return layout.errors == 0 && uniform_errors == 0 && worst_product_share <= 1; }
};

// 96 tokens of width 256, 8 experts of which 2 are chosen, 128 hidden units.
struct MoeCheck {
  std::vector<MoeStageErrors> stages;
  std::string product;
};

struct ProductShape {
  int64_t m, n, k;
};
// Multiples of 32 columns, as cuBLASLt needs.
constexpr ProductShape kProductShapes[] = {{1, 1, 32}, {1, 256, 512}, {20, 36, 64}, {65, 130, 96}, {128, 128, 1024}};

// Errors of one product as a share of its bound.
double product_share(const Nvfp4Product& product, const ProductShape& shape, uint64_t seed) {
  const auto [m, n, k] = shape;
  const Nvfp4Codes a = stage_nvfp4(random_normal_matrix(m, k, 3, seed));
  const Nvfp4Codes b = stage_nvfp4(random_normal_matrix(n, k, 0.05, seed + 1));
  const Matrix c = product.multiply(a, m, b, n, k);
  // In float64 from float32 values, whose own rounding is half a unit each.
  const Matrix x = dequantize_nvfp4(a, m, k), w = dequantize_nvfp4(b, n, k);
  double worst = 0;
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      const Float64Dot exact = float64_dot(x.row(i), w.row(j), k);
      const double share = std::abs(c(i, j) - exact.sum) / (0x1p-23 * static_cast<double>(k) * exact.magnitude);
      if (!(share <= worst)) worst = share;  // NaN too
    }
  return worst;
}

int64_t uniform_errors(const Nvfp4Product& product, int64_t m, int64_t n) {
  auto uniform = [](int64_t rows) {
    Nvfp4Codes coded = nvfp4_zeros(rows, 32);
    std::ranges::fill(coded.codes, uint8_t{0x33});         // 1.5 and 1.5
    std::ranges::fill(coded.block_scales, uint8_t{0x38});  // 1
    return coded;
  };
  int64_t errors = 0;
  const Matrix c = product.multiply(uniform(m), m, uniform(n), n, 32);
  for (float value : c.values()) errors += value != 72;
  return errors;
}

Nvfp4Product choose_nvfp4_product(const Device& device) {
  if (!device.is_cuda) return {multiply_nvfp4, "CPU, blocks exact, sums in float32"};
  const int ordinal = device.ordinals[0];
  const std::string problem = why_not_native_nvfp4(ordinal);
  if (problem.empty())
    return {[ordinal](const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k) {
              return multiply_nvfp4_natively(ordinal, a, m, b, n, k);
            },
            "cuBLASLt, block-scaled FP4"};
  return {[ordinal](const Nvfp4Codes& a, int64_t m, const Nvfp4Codes& b, int64_t n, int64_t k) {
            return multiply_nvfp4_on_cuda(ordinal, a, m, b, n, k);
          },
          "dequantizing product in bf16 (no native one: " + problem + ")"};
}

Nvfp4Check check_nvfp4(const Nvfp4Product& product, uint64_t seed) {
  Nvfp4Check check;
  check.product = product.name;
  check.layout = check_scale_layouts();
  for (int64_t rows : {1, 20, 128, 260})
    for (int64_t columns : {1, 64, 129}) {
      check.uniform_errors += uniform_errors(product, rows, columns);
      ++check.uniform_shapes;
    }
  for (const ProductShape& shape : kProductShapes) {
    const double share = product_share(product, shape, seed);
    if (!(share <= check.worst_product_share)) check.worst_product_share = share;
    ++check.product_shapes;
  }
  return check;
}

MoeCheck check_moe(const Nvfp4Product& product, uint64_t seed, std::optional<MoeStage> fault) {
  const MoeLayer layer = random_moe_layer(kModelDim, kHiddenDim, kExperts, kTopK, seed);
  const Matrix x = random_normal_matrix(kTokens, kModelDim, 1, seed + 1000);
  return {compare_moe(layer, x, run_moe(layer, x, product.multiply, fault)), product.name};
}

Json to_json(const Nvfp4Check& check) {
  return {{"stage", "nvfp4"},
          {"passed", check.passed()},
          {"shapes", check.layout.shapes},
          {"layout_errors", check.layout.errors},
          {"uniform_shapes", check.uniform_shapes},
          {"uniform_errors", check.uniform_errors},
          {"product", check.product},
          {"product_shapes", check.product_shapes},
          {"worst_product_share", check.worst_product_share}};
}

Json to_json(const MoeCheck& check) {
  Json stages = Json::array();
  for (const MoeStageErrors& stage : check.stages) {
    Json json = {{"stage", moe_stage_name(stage.stage)},
                 {"elements", stage.elements},
                 {"max_absolute", stage.max_absolute},
                 {"max_relative", stage.max_relative},
                 {"worst_share", stage.worst_share},
                 {"over_count", stage.over_count},
                 {"drift", stage.drift}};
    if (!stage.passed())
      json["first"] = {{"index", {stage.first_row, stage.first_column}},
                       {"found", stage.first_found},
                       {"reference", stage.first_reference}};
    stages.push_back(std::move(json));
  }
  return {{"stage", "moe"},
          {"passed", first_failure(check.stages) == nullptr},
          {"product", check.product},
          {"stages", std::move(stages)}};
}

std::string to_text(const Nvfp4Check& check) {
  return fmt::format(
      "scale layout   {} up to 260 x 1040, {}\n"
      "uniform test   {}, {} other than 72\n"
      "products       {}, largest error {:.4f} of the bound\n"
      "by {}\n",
      counted(check.layout.shapes, "shape"), counted(check.layout.errors, "error"),
      counted(check.uniform_shapes, "shape"), counted(check.uniform_errors, "element"),
      counted(check.product_shapes, "shape"), check.worst_product_share, check.product);
}

std::string to_text(const MoeCheck& check) {
  std::string text = fmt::format("{:<11} {:>8} {:>10} {:>10} {:>10} {:>8} {:>9}\n", "stage", "elements", "max abs",
                                 "max rel", "of bound", "over", "drift");
  for (const MoeStageErrors& stage : check.stages)
    text += fmt::format("{:<11} {:>8} {:>10.2e} {:>10.2e} {:>10.3f} {:>8} {:>8.3f}%\n", moe_stage_name(stage.stage),
                        stage.elements, stage.max_absolute, stage.max_relative, stage.worst_share, stage.over_count,
                        100 * stage.drift);
  return text + "products by " + check.product + "\n";
}

// Throw CheckErrors that name what failed, and of a layer the first stage and element.
void require_passed(const Nvfp4Check& check) {
  if (check.layout.errors > 0)
    throw CheckError(fmt::format("the scale layout has {}, the first at {} x {}; 0 allowed",
                                 counted(check.layout.errors, "error"), check.layout.first_rows,
                                 check.layout.first_columns));
  if (check.uniform_errors > 0)
    throw CheckError(
        fmt::format("the uniform test has {} other than 72; 0 allowed", counted(check.uniform_errors, "element")));
  if (!check.passed())
    throw CheckError(fmt::format("a product in NVFP4 is off by {} times what is allowed", check.worst_product_share));
}

void require_passed(const MoeCheck& check) {
  const MoeStageErrors* failed = first_failure(check.stages);
  if (!failed) return;
  throw CheckError(
      fmt::format("stage '{}' is the first to leave its bounds: {}, the first [{}, {}] is {:.9g}, the reference {:.9g}",
                  moe_stage_name(failed->stage), counted(failed->over_count, "element"), failed->first_row,
                  failed->first_column, failed->first_found, failed->first_reference));
}

struct NumericsArguments {
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

std::optional<MoeStage> parse_fault(const NumericsArguments& options) {
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
  auto options = std::make_shared<NumericsArguments>();
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
