// product_arithmetic.h: what products of float32 matrices do to their factors.
#pragma once

namespace thimble {

// kBf16: factors are rounded to bf16, to nearest and ties to even; sums are float32.
enum class ProductArithmetic { kFloat32, kBf16 };

}  // namespace thimble
