// make_method.cpp: which of a request's options are each method's.
#include "quantizer/pipeline/make_method.h"

#include "quantizer/methods/nvfp4/nvfp4_method.h"
#include "quantizer/methods/slope/slope_method.h"
#include "quantizer/methods/trace/trace_method.h"

namespace thimble {

std::unique_ptr<Method> make_method(const QuantizeRequest& request) {
  switch (request.method) {
    case MethodKind::kTrace: return make_trace_method({request.plan, request.high_is_auto, request.encode});
    case MethodKind::kNvfp4: return make_nvfp4_method(request.plan.min_elements, request.encode);
    case MethodKind::kSlope: break;
  }
  return make_slope_method({request.slope, request.plan.min_elements, request.effort, request.cross_sequences,
                            request.tuner, request.slope_target, request.bits_per_byte, request.encode,
                            request.hessians.empty()});
}

}  // namespace thimble
