// numerics_stages.cpp: see numerics_stages.h.
#include "quantizer/pipeline/numerics_stages.h"

#include <fmt/format.h>

#include <cmath>

#include "runtime/base/count_text.h"
#include "runtime/base/error.h"
#include "runtime/cuda/kernels/cuda_nvfp4.h"

namespace thimble {
namespace {

constexpr int64_t kTokens = 96, kModelDim = 256, kHiddenDim = 128, kExperts = 8, kTopK = 2;

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

}  // namespace

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

}  // namespace thimble
