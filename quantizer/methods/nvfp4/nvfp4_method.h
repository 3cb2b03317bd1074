// nvfp4_method.h: every matrix with a Hessian in NVFP4 by GPTQ: one size, which fits a budget or does not.
#pragma once

#include <memory>

#include "quantizer/methods/method.h"

namespace thimble {

// Matrices of at most `min_elements` elements stay fp16.
std::unique_ptr<Method> make_nvfp4_method(int64_t min_elements, const EncodeOptions& encode);

}  // namespace thimble
