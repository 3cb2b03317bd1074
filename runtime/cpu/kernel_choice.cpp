// kernel_choice.cpp: picks the kernel tables for this machine.
#include <cstdlib>
#include <string>

#include "runtime/base/error.h"
#include "runtime/cpu/bf16_products.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_kernels.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16 };

InstructionSet choose_instruction_set() {
  const char* wanted = std::getenv("THIMBLE_ISA");
  std::string limit = wanted ? wanted : "";
  if (!limit.empty() && limit != "portable" && limit != "avx2" && limit != "avx512" && limit != "avx512_bf16")
    throw UsageError("THIMBLE_ISA is '" + limit + "', allowed are portable, avx2, avx512, avx512_bf16");
#ifdef THIMBLE_X86_KERNELS
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  if (avx512 && __builtin_cpu_supports("avx512bf16") && (limit.empty() || limit == "avx512_bf16"))
    return InstructionSet::kAvx512Bf16;
  if (avx512 && limit != "avx2" && limit != "portable") return InstructionSet::kAvx512;
  if (avx2 && limit != "portable") return InstructionSet::kAvx2;
#endif
  return InstructionSet::kPortable;
}

InstructionSet instruction_set() {
  static const InstructionSet chosen = choose_instruction_set();
  return chosen;
}

const CpuKernels& kernels_of([[maybe_unused]] InstructionSet set) {
#ifdef THIMBLE_X86_KERNELS
  if (set >= InstructionSet::kAvx512) return cpu_kernels_avx512();
  if (set == InstructionSet::kAvx2) return cpu_kernels_avx2();
#endif
  return cpu_kernels_portable();
}

const CpuGradientKernels& gradient_kernels_of([[maybe_unused]] InstructionSet set) {
#ifdef THIMBLE_X86_KERNELS
  if (set >= InstructionSet::kAvx512) return cpu_gradient_kernels_avx512();
  if (set == InstructionSet::kAvx2) return cpu_gradient_kernels_avx2();
#endif
  return cpu_gradient_kernels_portable();
}

}  // namespace

const CpuKernels& cpu_kernels() {
  static const CpuKernels& chosen = kernels_of(instruction_set());
  return chosen;
}

const CpuGradientKernels& cpu_gradient_kernels() {
  static const CpuGradientKernels& chosen = gradient_kernels_of(instruction_set());
  return chosen;
}

#ifdef THIMBLE_X86_KERNELS
const Bf16Products* bf16_products() {
  return instruction_set() == InstructionSet::kAvx512Bf16 ? &bf16_products_avx512() : nullptr;
}
#endif

std::string_view cpu_instruction_set(ProductArithmetic arithmetic) {
  return arithmetic == ProductArithmetic::kBf16 && bf16_products() ? "avx512_bf16" : cpu_kernels().name;
}

}  // namespace thimble
