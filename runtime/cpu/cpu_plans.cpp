// cpu_plans.cpp: see cpu_plans.h.
#include "runtime/cpu/cpu_plans.h"

#include <algorithm>
#include <numeric>

#include "runtime/cpu/cpu_cache.h"
#include "runtime/cpu/cpu_gradients.h"
#include "runtime/cpu/cpu_models.h"
#include "runtime/cpu/gemm.h"
#include "runtime/cpu/gradient_ops.h"
#include "runtime/ops/logit_pieces.h"

namespace thimble {
namespace {

uint64_t float_bytes(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

// What the transpose of one operation has beside the pass's own slots, over so many positions.
uint64_t scratch_bytes(const Node& node, const Network& network, int64_t positions) {
  if (const auto* attention = std::get_if<op::Attention>(&node.operation))
    return attention_backward_bytes(*attention, positions);
  const bool has_two =
      std::holds_alternative<op::Gate>(node.operation) || std::holds_alternative<op::Heads>(node.operation);
  return has_two ? float_bytes(2 * positions * network.width_of(node.output)) : 0;
}

}  // namespace

uint64_t cpu_pass_bytes(const Network& network, int64_t rows, int64_t context, const PassOptions& options) {
  const PassPlan plan = plan_pass(network, options);
  const int64_t width = std::accumulate(plan.slot_widths.begin(), plan.slot_widths.end(), int64_t{0});
  uint64_t bytes = float_bytes(width * rows);
  for (const RotaryRule& rule : network.rotaries) bytes += float_bytes(rule.dims * context);  // cosines and sines
  return bytes;
}

uint64_t cpu_pause_bytes(const Network& network, int64_t length) {
  const PassPlan plan = plan_pass(network);
  int64_t most = 0;
  for (const LinearInput& input : network.linear_inputs()) {
    int64_t width = 0;
    for (const LiveValue& live : live_values(network, plan, input.first_reader)) width += live.place.width;
    most = std::max(most, width);
  }
  return float_bytes(most * length);
}

uint64_t cpu_gradient_bytes(const Network& network, int64_t length, bool for_gains, bool for_matrices) {
  const PassOptions options = cpu_gradient_options(network, length, for_gains, for_matrices);
  // Of the loss; of the product and of a teacher besides.
  const uint64_t logits =
      float_bytes((for_gains ? 3 : 1) * std::min(logit_rows(network.vocabulary()), length) * network.vocabulary());
  uint64_t scratch = 0;
  for (const Node& node : network.nodes) scratch = std::max(scratch, scratch_bytes(node, network, length));
  return cpu_pass_bytes(network, length, length, options) + logits + scratch;
}

MemoryPlan plan_cpu_generation(const Network& network, const CalibrationOptions& options, uint64_t weight_bytes) {
  const int64_t batch = std::min(calibration_batch(network, options), kMostFewRows), rows = std::max<int64_t>(2, batch);
  const int64_t states = std::accumulate(network.state_widths.begin(), network.state_widths.end(), int64_t{0});
  return {"writing text",
          "sequence",
          options.length,
          batch,
          {{"weights", weight_bytes},
           {"keys and values",
            static_cast<uint64_t>(rows) * CpuCache::bytes_per_sequence(network, options.length, kCalibrationCache)},
           {"activations",
            cpu_pass_bytes(network, rows, options.length) + float_bytes(rows * (states + network.vocabulary()))}},
          /*is_host=*/true};
}

MemoryPlan plan_cpu_divergence(const Network& network, int64_t length, int64_t sequences, uint64_t weight_bytes,
                               const DivergenceOptions& options) {
  int64_t elements = 0, summed = 0, largest = 0;
  for (const MatrixUse& matrix : network.matrices) {
    elements += matrix.rows * matrix.columns;
    if (!options.summed.contains(matrix.name)) continue;
    summed += matrix.rows * matrix.columns;
    largest = std::max(largest, matrix.rows * matrix.columns);
  }
  const int64_t width = network.matrix(network.head.weight).columns;
  MemoryPlan plan{
      "distilling",
      "sequence",
      length,
      1,
      {{"weights", weight_bytes},
       {"student", static_cast<uint64_t>(elements)},
       {"activations",
        cpu_gradient_bytes(network, length, /*for_gains=*/true, summed > 0) + cpu_pass_bytes(network, length, length)},
       {"what the original's head reads",
        float_bytes(std::min(sequences, options.kept_sequences(network, sequences, length, sizeof(float)) + 1) *
                    (length - 1) * width)}},
      /*is_host=*/true};
  // Of a part and of all; what is sent to other ranks or comes from them.
  const int64_t sums = options.adds == DivergenceOptions::Adds::kNothing ? 1 : std::min<int64_t>(sequences, 2);
  const int64_t sent = options.adds == DivergenceOptions::Adds::kAllParts ? largest : 0;
  if (summed > 0) plan.uses.push_back({"gradients of matrices", float_bytes(sums * summed + sent)});
  return plan;
}

}  // namespace thimble
