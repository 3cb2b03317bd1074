// trace_method.h: GPTQ on grids with a scale per row, in two precisions: as many of the layers with the largest traces
// as fit in the higher one (plan_search.h).
#pragma once

#include <memory>

#include "quantizer/methods/method.h"

namespace thimble {

struct TraceMethodOptions {
  TracePlanOptions plan;      // high_count is used unless high_is_auto
  bool high_is_auto = false;  // search the number of high-precision layers
  EncodeOptions encode;
};

std::unique_ptr<Method> make_trace_method(const TraceMethodOptions& options);

}  // namespace thimble
