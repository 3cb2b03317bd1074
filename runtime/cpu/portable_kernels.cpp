// portable_kernels.cpp: the choice of programs that have the portable kernels of the forward pass alone, in place of
// kernel_choice.cpp.
#include "runtime/cpu/cpu_kernels.h"

namespace thimble {

const CpuKernels& cpu_kernels() { return cpu_kernels_portable(); }

}  // namespace thimble
