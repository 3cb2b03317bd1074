// make_method.h: the methods by name.
#pragma once

#include <memory>

#include "quantizer/methods/method.h"
#include "quantizer/pipeline/quantize_request.h"

namespace thimble {

std::unique_ptr<Method> make_method(const QuantizeRequest& request);

}  // namespace thimble
