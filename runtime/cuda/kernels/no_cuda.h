// no_cuda.h: what a build without CUDA says where it is asked for some.
#pragma once

#include "runtime/base/error.h"

namespace thimble {

[[noreturn]] inline void refuse_cuda() { throw DeviceError("this build computes on the CPU only; use --device cpu"); }

}  // namespace thimble
