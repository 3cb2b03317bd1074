// cuda_memory_stub.cpp: the answers of a build without CUDA.
#include "runtime/base/error.h"
#include "runtime/cuda/cuda_memory.h"

namespace thimble {
namespace {

[[noreturn]] void refuse() { throw DeviceError("this build computes on the CPU only"); }

}  // namespace

MemoryPlan plan_scoring(const Network&, Numerics, int64_t, int64_t, uint64_t) { refuse(); }
MemoryPlan plan_generation(const Network&, Numerics, int64_t, int64_t, uint64_t) { refuse(); }
MemoryPlan plan_text(const Network&, Numerics, int64_t, int64_t, uint64_t) { refuse(); }
MemoryPlan plan_hessians(const Network&, Numerics, int64_t, int64_t, int64_t, uint64_t) { refuse(); }
MemoryPlan plan_input_pairs(const Network&, Numerics, int64_t, int64_t, int64_t, bool, uint64_t) { refuse(); }
std::optional<MemoryPlan> plan_kept_input_pairs(const Network&, Numerics, int64_t, int64_t, int64_t, uint64_t) {
  refuse();
}
MemoryPlan plan_gradients(const Network&, int64_t, int64_t, uint64_t) { refuse(); }
MemoryPlan plan_divergence(const Network&, int64_t, int64_t, uint64_t) { refuse(); }
uint64_t gram_bytes(const Network&, int64_t, int64_t) { refuse(); }

}  // namespace thimble
