// kernel_choice.cpp: picks the kernel tables for this machine.
#include <cstdlib>
#include <string>

#ifdef THIMBLE_X86_KERNELS
#include <cpuid.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "runtime/base/error.h"
#include "runtime/cpu/bf16_products.h"
#include "runtime/cpu/cpu_gradient_kernels.h"
#include "runtime/cpu/cpu_kernels.h"
#include "runtime/cpu/gemm.h"

namespace thimble {
namespace {

enum class InstructionSet { kPortable, kAvx2, kAvx512, kAvx512Bf16, kAmxBf16 };

#ifdef THIMBLE_X86_KERNELS
// Has the processor AMX's tiles of bf16, and does the system let this process use them?
bool allow_amx() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kNeeded = 1u << 22 | 1u << 24;  // AMX-BF16, AMX-TILE
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kNeeded) != kNeeded) return false;
#ifdef __linux__
  constexpr long kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
#else
  return false;
#endif
}
#endif

InstructionSet choose_instruction_set() {
  const char* wanted = std::getenv("THIMBLE_ISA");
  std::string limit = wanted ? wanted : "";
  if (!limit.empty() && limit != "portable" && limit != "avx2" && limit != "avx512" && limit != "avx512_bf16" &&
      limit != "amx_bf16")
    throw UsageError("THIMBLE_ISA is '" + limit + "', allowed are portable, avx2, avx512, avx512_bf16, amx_bf16");
#ifdef THIMBLE_X86_KERNELS
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  if (bf16 && (limit.empty() || limit == "amx_bf16") && allow_amx()) return InstructionSet::kAmxBf16;
  // Intel's multiply pairs of bf16 half as fast as float32 where they have no tiles for it.
  if (bf16 && (limit == "amx_bf16" || limit == "avx512_bf16" || (limit.empty() && !__builtin_cpu_is("intel"))))
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
  switch (instruction_set()) {
    case InstructionSet::kAmxBf16: return &bf16_products_amx();
    case InstructionSet::kAvx512Bf16: return &bf16_products_avx512();
    default: return nullptr;
  }
}
#endif

std::string_view cpu_instruction_set(ProductArithmetic arithmetic) {
  const Bf16Products* bf16 = arithmetic == ProductArithmetic::kBf16 ? bf16_products() : nullptr;
  return bf16 ? bf16->name : cpu_kernels().name;
}

}  // namespace thimble
