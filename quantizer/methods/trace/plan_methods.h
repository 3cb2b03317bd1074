// plan_methods.h: the methods that give whole matrices one of a few precisions, and let GPTQ round them:
//   trace  grids with a scale per row, in two precisions: as many of the layers with the largest traces as fit in the
//          higher one
//   nvfp4  NVFP4: one size, which fits a budget or does not
#pragma once

#include <memory>

#include "quantizer/methods/method.h"

namespace thimble {

struct TraceMethodOptions {
  TracePlanOptions plan;      // high_count is used unless high_is_auto
  bool high_is_auto = false;  // search the number of high-precision layers
  EncodeOptions encode;
};

// Fits the plan with the most high-precision layers whose artifact is within the limit (auto), or the one asked for.
// When it is not, codes of +-1 are set to 0, the cheapest first, as few as reach the limit (within a thousandth). When
// all of them are not enough: a CheckError with the size reached.
std::unique_ptr<Method> make_trace_method(const TraceMethodOptions& options);

// Every matrix with a Hessian in NVFP4. Matrices of at most `min_elements` elements stay fp16.
std::unique_ptr<Method> make_nvfp4_method(int64_t min_elements, const EncodeOptions& encode);

}  // namespace thimble
