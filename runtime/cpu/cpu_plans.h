// cpu_plans.h: what models take of the host's memory while they run on the CPU, as the classes of this room allocate
// it. In: a network, tokens, and the bytes of its weights that lie in memory, not in a mapped file.  Out: plans.
#pragma once

#include "runtime/base/memory_plan.h"
#include "runtime/ops/divergence_pass.h"
#include "runtime/ops/generator.h"
#include "runtime/ops/pass_plan.h"

namespace thimble {

// A CpuPass over batches of `rows` rows in contexts of `context` tokens.
uint64_t cpu_pass_bytes(const Network& network, int64_t rows, int64_t context, const PassOptions& options = {});

// What a CpuPass over one sequence leaves in the largest of its pauses, at inputs of linear layers.
uint64_t cpu_pause_bytes(const Network& network, int64_t length);

// CpuGradients over sequences of `length` tokens, `for_gains` with the logits of a teacher too.
uint64_t cpu_gradient_bytes(const Network& network, int64_t length, bool for_gains, bool for_matrices = false);

// Writing text: the largest batch of make_cpu_generator().
MemoryPlan plan_cpu_generation(const Network& network, const CalibrationOptions& options, uint64_t weight_bytes);

// make_cpu_divergence_pass() over so many sequences: a student's codes at one byte each, and with the options gradients
// of its matrices.
MemoryPlan plan_cpu_divergence(const Network& network, int64_t length, int64_t sequences, uint64_t weight_bytes,
                               const DivergenceOptions& options = {});

}  // namespace thimble
