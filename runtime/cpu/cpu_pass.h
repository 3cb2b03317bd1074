// cpu_pass.h: runs a network on the CPU in float32, forwards and back: the reference for every device. Whole windows,
// or sequences that grow by cached keys and values. Results do not depend on the number of threads.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "runtime/cpu/cpu_cache.h"
#include "runtime/cpu/cpu_rows.h"
#include "runtime/ops/numeric_policy.h"
#include "runtime/ops/observers.h"
#include "runtime/ops/pass_plan.h"
#include "runtime/ops/token_batch.h"
#include "runtime/ops/vector_sums.h"
#include "runtime/ops/weights.h"
#include "runtime/tensor/matrix.h"

namespace thimble {

class CpuPass {
 public:
  // No position may reach `context_length`. `weights`, rounded by the caller as `policy` says (round_weights()), must
  // outlive the pass and may change between instructions. With a backward pass the policy must be exact.
  CpuPass(const Weights& weights, int64_t context_length, const NumericPolicy& policy = {},
          const PassOptions& options = {});

  // A pass in steps: run_to(node) runs all nodes before that one, of Network::nodes.size() the rest. Without a cache
  // the batch begins at position 0. Of one sequence, rows before `first_needed` may stay unknown where only their own
  // outputs need them.
  void begin(TokenBatch batch, CpuCache* cache = nullptr, int64_t first_needed = 0);
  void run_to(size_t node);
  // A value that a node before the next one made and a later one reads.
  ConstMatrixView value(ValueId value) const;

  // What later nodes read of a pass without a cache, to go on with another batch meanwhile.
  struct Pause {
    size_t next_node = 0;
    TokenBatch batch;
    std::vector<std::pair<ValueId, Matrix>> values;
  };
  Pause pause();
  void resume(Pause pause);

  // All of it. The observer sees the inputs of all linear layers below the head. Returns the head's input, rows from
  // first_needed on, valid until the next call.
  ConstMatrixView run(TokenBatch batch, CpuCache* cache = nullptr, int64_t first_needed = 0,
                      LinearObserver* observer = nullptr);
  // Logits (rows, V) of the head's input. `product`, unless null: takes what they are before softcap.
  void logits(ConstMatrixView hidden, MatrixView out, Matrix* product = nullptr) const;

  // After run() with has_backward: first the head, rows [first_row, ...) of the window at a time until all are done,
  // then the rest, once. `logit_gradient` (rows, V): of the loss by what the head's product gave, before the softcap.
  // `head_output`: that product itself, for observers of outputs; may be empty. The head's input, as run() returned it,
  // stays until the rest begins. `sums`, unless null: added to, as a VectorSumLayout has them.
  void backward_head(int64_t first_row, ConstMatrixView logit_gradient, ConstMatrixView head_output,
                     GradientObserver& observer);
  void backward(GradientObserver& observer, std::vector<double>* sums);

  const Weights& weights() const { return weights_; }
  const Network& network() const { return network_; }
  int64_t context_length() const { return context_length_; }

 private:
  friend class CpuForward;
  friend class CpuBackward;

  void run(const Instruction& instruction);
  MatrixView view(const Place& place);
  ConstMatrixView view(const Place& place) const;
  void round(Boundary boundary, MatrixView y) const;

  const Weights& weights_;
  const Network& network_;
  int64_t context_length_;
  NumericPolicy policy_;
  PassOptions options_;
  PassPlan plan_;
  VectorSumLayout sums_;
  std::vector<RotaryTable> rotaries_;
  std::vector<Matrix> slots_;
  // Of the batch that runs.
  TokenBatch batch_;
  CpuCache* cache_ = nullptr;
  int64_t first_needed_ = 0;
  size_t next_node_ = 0;
};

}  // namespace thimble
