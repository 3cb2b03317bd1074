// numerics_stages.h: what `thimble numerics --stage` checks: the formats and products of NVFP4, and a
// mixture-of-experts layer stage by stage.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/numerics/moe_reference.h"
#include "runtime/base/json.h"
#include "runtime/codes/nvfp4_scale_layout.h"
#include "runtime/device/device.h"

namespace thimble {

// A product of two operands in NVFP4, and what computes it: the CPU; on a device cuBLASLt where it can, else the
// dequantizing product.
struct Nvfp4Product {
  MultiplyNvfp4 multiply;
  std::string name;
};
Nvfp4Product choose_nvfp4_product(const Device& device);

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
Nvfp4Check check_nvfp4(const Nvfp4Product& product, uint64_t seed);

struct MoeCheck {
  std::vector<MoeStageErrors> stages;
  std::string product;
};
// 96 tokens of width 256, 8 experts of which 2 are chosen, 128 hidden units.
MoeCheck check_moe(const Nvfp4Product& product, uint64_t seed, std::optional<MoeStage> fault);

Json to_json(const Nvfp4Check& check);
Json to_json(const MoeCheck& check);
std::string to_text(const Nvfp4Check& check);
std::string to_text(const MoeCheck& check);

// Throw CheckErrors that name what failed, and of a layer the first stage and element.
void require_passed(const Nvfp4Check& check);
void require_passed(const MoeCheck& check);

}  // namespace thimble
